// The rows that a token of a prefill pass attends to, and the parts that its two kernels share.
#pragma once

#include "backend/cuda/attention/prefill_attention.hpp"
#include "backend/cuda/attention/rope.cuh"

namespace ds4::cuda {

inline constexpr uint32_t window_rows = 128;
/// 512^(-1/2) log2(e): weights are powers of two of scaled scores.
inline constexpr float log2_score_scale = 0.063758716f;
inline constexpr float log2_e = 1.44269504f;

/// Raw rows oldest first, then compressed rows ascending: a list that depends on the token alone.
struct PrefillRows {
  const uint32_t* selected;  // null: all compressed rows
  uint32_t raw;
  uint32_t count;
  uint32_t first_raw;  // row numbers
  uint32_t first_compressed;

  __device__ PrefillRows(const PrefillAttention& a, uint32_t token) {
    const uint64_t position = a.position + token;
    raw = position + 1 < window_rows ? static_cast<uint32_t>(position + 1) : window_rows;
    uint32_t compressed = visible_rows(position, a.ratio);
    selected = nullptr;
    if (a.ratio == 4 && compressed > a.top_k) {
      compressed = a.top_k;
      selected = a.selected + size_t{token} * a.top_k;
    }
    count = raw + compressed;
    first_raw = a.older + token + 1 - raw;
    first_compressed = a.older + a.tokens;
  }

  __device__ uint32_t row(uint32_t i) const {
    if (i < raw) return first_raw + i;
    return first_compressed + (selected != nullptr ? __ldg(selected + i - raw) : i - raw);
  }
};

/// Two values as F16, clamped to the finite range, NaN kept; `low` takes the lower half.
__device__ inline uint32_t pack_f16(float low, float high) {
  const __half2 largest = __float2half2_rn(65504.0f);
  const __half2 pair = __hmax2_nan(__hmin2_nan(__floats2half2_rn(low, high), largest), __hneg2(largest));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ inline float2 unpack_f16(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

/// 1 / sqrt(mean + 1e-6) of a head of 512 whose squares add up to `sum`.
__device__ inline float inverse_root_mean_square(float sum) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(sum, 1.0f / 512.0f), 1e-6f)));
}

__device__ inline float sum_of_squares(uint4 v, float sum) {
#pragma unroll
  for (uint32_t pair : {v.x, v.y, v.z, v.w}) {
    const float2 x = unpack_f16(pair);
    sum = fmaf(x.x, x.x, fmaf(x.y, x.y, sum));
  }
  return sum;
}

/// The kernels of both ways; the first wants heads that are a multiple of 64, and has_warpgroup_products().
cudaError_t prefill_attention_warpgroup(const PrefillAttention& arguments, cudaStream_t stream);
cudaError_t prefill_attention_portable(const PrefillAttention& arguments, cudaStream_t stream);

}  // namespace ds4::cuda
