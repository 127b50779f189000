// Maxima and weights of blocks, through Highway.
// Layout: F32 logits to one maximum, or one sum of whole weights, for each 64 of them.
// Preconditions: none; the last block may be shorter.
// Cost: one pass, bound by the memory that holds the logits; weights some 30 operations a logit.
// Why: the maxima tell where the few tokens are that a choice needs exp() for, and without min-p all need it.
#include "sampling/blocks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sampling/blocks.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ds4::sampling::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

bool BlockMaxima(const float* logits, size_t count, float* maxima) {
  using D = hn::CappedTag<float, 16>;
  const D d;
  const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto largest_finite = hn::Set(d, std::numeric_limits<float>::max());
  auto nan = hn::IsNaN(none);
  const size_t blocks = count / block_logits;
  for (size_t b = 0; b < blocks; ++b) {
    auto maximum = none;
    for (size_t i = 0; i < block_logits; i += hn::Lanes(d)) {
      const auto v = hn::LoadU(d, logits + b * block_logits + i);
      nan = hn::Or(nan, hn::IsNaN(v));
      maximum = hn::Max(maximum, hn::IfThenElse(hn::Le(hn::Abs(v), largest_finite), v, none));
    }
    maxima[b] = hn::GetLane(hn::MaxOfLanes(d, maximum));
  }
  bool any_nan = !hn::AllFalse(d, nan);
  if (blocks * block_logits == count) return any_nan;
  float& last = maxima[blocks] = -std::numeric_limits<float>::infinity();
  for (size_t i = blocks * block_logits; i < count; ++i) {
    any_nan |= std::isnan(logits[i]);
    if (std::isfinite(logits[i])) last = std::max(last, logits[i]);
  }
  return any_nan;
}

// Softmax::relative() and Softmax::whole(), operation for operation. The compiler must not fuse any two.
uint64_t BlockWeight(const float* logits, const Softmax& softmax, float min_p) {
  using D = hn::CappedTag<float, 16>;
  const D d;
  const hn::RebindToSigned<D> d32;
  const auto constant = [d](float value) HWY_ATTR { return hn::Set(d, value); };
  auto high_sum = hn::Zero(d32), low_sum = hn::Zero(d32);
  for (size_t i = 0; i < block_logits; i += hn::Lanes(d)) {
    const auto distance = hn::Sub(hn::LoadU(d, logits + i), constant(softmax.maximum));
    const auto x = hn::Mul(distance, constant(softmax.inverse_temperature));
    const auto n =
        hn::Sub(hn::Add(hn::Mul(x, constant(exp_log2_e)), constant(exp_round)), constant(exp_round));
    const auto f = hn::Sub(hn::Sub(x, hn::Mul(n, constant(exp_ln2_high))), hn::Mul(n, constant(exp_ln2_low)));
    auto p = constant(exp_term_7);
    for (const float term : {exp_term_6, exp_term_5, exp_term_4, exp_term_3, exp_term_2, 1.0f, 1.0f}) {
      p = hn::Add(hn::Mul(p, f), constant(term));
    }
    const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(d32, n), hn::Set(d32, 127))));
    const auto relative = hn::Mul(p, scale);
    const auto counts = hn::And(hn::And(hn::Le(distance, hn::Zero(d)), hn::Ge(x, constant(lowest_exponent))),
                                hn::Ge(relative, constant(min_p)));
    // 2^40 times the probability in two halves of 20 bits, each exact.
    constexpr float half = 1048576.0f;
    const auto scaled = hn::IfThenElseZero(counts, hn::Mul(relative, constant(half)));
    const auto high = hn::ConvertTo(d32, scaled);
    const auto rest = hn::Sub(scaled, hn::ConvertTo(d, high));
    high_sum = hn::Add(high_sum, high);
    low_sum = hn::Add(low_sum, hn::ConvertTo(d32, hn::Mul(rest, constant(half))));
  }
  const auto sum = [d32](auto v)
                       HWY_ATTR { return static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(d32, v))); };
  return (sum(high_sum) << 20) + sum(low_sum);
}

}  // namespace ds4::sampling::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::sampling {

HWY_EXPORT(BlockMaxima);
HWY_EXPORT(BlockWeight);

bool block_maxima(std::span<const float> logits, std::span<float> maxima) {
  return HWY_DYNAMIC_DISPATCH(BlockMaxima)(logits.data(), logits.size(), maxima.data());
}

uint64_t block_weight(std::span<const float> block, const Softmax& softmax, float min_p) {
  if (block.size() == block_logits) return HWY_DYNAMIC_DISPATCH(BlockWeight)(block.data(), softmax, min_p);
  uint64_t sum = 0;
  for (const float logit : block) {
    const float relative = softmax.relative(logit);
    if (relative >= min_p) sum += Softmax::whole(relative);
  }
  return sum;
}

}  // namespace ds4::sampling
#endif
