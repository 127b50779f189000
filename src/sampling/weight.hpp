// The arithmetic of a random choice, executed alike on the CPU and on the GPU (docs/sampling.md §1).
//
// Single operations of IEEE F32 up to the weight of a token; from there on whole numbers, whose sums are the
// same in any order. So every implementation chooses the same token, whatever its threads and vectors.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define DS4_HOST_DEVICE __host__ __device__
#else
#define DS4_HOST_DEVICE
#endif

namespace ds4::sampling {

/// More candidates than this are never ranked by top-k.
inline constexpr uint32_t max_top_k = 1024;
/// Weights below 2^-40 of the best token's are 0.
inline constexpr float weight_one = 1099511627776.0f;  // 2^40
/// exp() of less is below 2^-40.
inline constexpr float lowest_exponent = -28.0f;

// nvcc may join a product and a sum on the GPU, and does not when told which operation is meant.
DS4_HOST_DEVICE inline float multiplied(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
DS4_HOST_DEVICE inline float added(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
DS4_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
// exp(x), x = n ln 2 + f with |f| <= 0.35 and the Taylor series of exp(f) up to f^7.
inline constexpr float exp_log2_e = 1.44269504f;
inline constexpr float exp_round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
inline constexpr float exp_ln2_high = 0.693359375f,
                       exp_ln2_low = -2.12194440e-4f;  // n times the first is exact
inline constexpr float exp_term_7 = 1.0f / 5040, exp_term_6 = 1.0f / 720, exp_term_5 = 1.0f / 120,
                       exp_term_4 = 1.0f / 24, exp_term_3 = 1.0f / 6, exp_term_2 = 0.5f;

/// exp(x) for lowest_exponent <= x <= 0, to about one unit in the last place; exp(0) is 1.
DS4_HOST_DEVICE inline float exponential(float x) {
  const float n = added(added(multiplied(x, exp_log2_e), exp_round), -exp_round);
  const float f = added(added(x, -multiplied(n, exp_ln2_high)), -multiplied(n, exp_ln2_low));
  float p = added(multiplied(exp_term_7, f), exp_term_6);
  p = added(multiplied(p, f), exp_term_5);
  p = added(multiplied(p, f), exp_term_4);
  p = added(multiplied(p, f), exp_term_3);
  p = added(multiplied(p, f), exp_term_2);
  p = added(multiplied(p, f), 1.0f);
  p = added(multiplied(p, f), 1.0f);
  return multiplied(p, float_of_bits(static_cast<uint32_t>(127 + static_cast<int>(n)) << 23));
}

/// Parameters of a random choice within their ranges.
struct DrawRule {
  float temperature = 1;
  uint32_t top_k = 0;  // 0: off
  float top_p = 1;     // 1: off
  float min_p = 0;     // [0, 1]
};

/// How logits become weights.
struct Softmax {
  float maximum = 0;  // the largest finite logit
  float inverse_temperature = 1;
  float min_p = 0;
  float kept_reach =
      0;  // logits further than -kept_reach below the maximum do not pass min-p: saves their exp()

  /// Probability relative to the best token's; 0 for what is not finite.
  DS4_HOST_DEVICE float relative(float logit) const {
    const float distance = added(logit, -maximum);
    const float exponent = multiplied(distance, inverse_temperature);
    return distance <= 0 && exponent >= lowest_exponent ? exponential(exponent) : 0.0f;
  }
  DS4_HOST_DEVICE static uint64_t whole(float relative) {
    return static_cast<uint64_t>(multiplied(relative, weight_one));
  }
  DS4_HOST_DEVICE uint64_t weight(float logit) const { return whole(relative(logit)); }
  /// The weight after min-p.
  DS4_HOST_DEVICE uint64_t kept_weight(float logit) const {
    if (!(added(logit, -maximum) >= kept_reach)) return 0;
    const float r = relative(logit);
    return r >= min_p ? whole(r) : 0;
  }
};

/// The first token, in the order of the choice, up to which the weights add up to this is the one drawn:
/// max(1, ceil(uniform * total)), `uniform` in [0, 1) with 24 bits. total <= 2^60: the vocabulary has at most
/// 2^20 tokens.
DS4_HOST_DEVICE inline uint64_t draw_target(float uniform, uint64_t total) {
  const auto numerator = static_cast<uint64_t>(multiplied(uniform, 16777216.0f));  // of 2^24
  const uint64_t low_bits = (uint64_t{1} << 24) - 1;
  const uint64_t target = numerator * (total >> 24) + ((numerator * (total & low_bits) + low_bits) >> 24);
  return target > 0 ? target : 1;
}

/// The kept weight at which top-p is satisfied.
DS4_HOST_DEVICE inline uint64_t nucleus_target(float top_p, uint64_t total) {
  const auto target = static_cast<uint64_t>(static_cast<double>(total) * static_cast<double>(top_p));
  return target > 0 ? target : 1;
}

}  // namespace ds4::sampling
