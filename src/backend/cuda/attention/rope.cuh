// Rotary embedding on the device (docs/model.md §3.2).
//
// Frequencies lie in device memory as float [2][32]: plain, then compressed, as cpu::rope_frequencies()
// computes them. The angle is the F32 product position * frequency; sincosf reduces it over its full range.
#pragma once

#include <cstdint>

namespace ds4::cuda {

inline constexpr int rope_pair_count = 32;

/// The table of a layer within float [2][32].
__host__ __device__ inline const float* layer_frequencies(const float* tables, uint32_t ratio) {
  return tables + (ratio == 0 ? 0 : rope_pair_count);
}

/// Cosine (x) and sine (y) of pair `pair` at `position`.
__device__ inline float2 rope_angle(uint64_t position, const float* frequencies, int pair) {
  float2 angle;
  sincosf(__fmul_rn(static_cast<float>(position), frequencies[pair]), &angle.y, &angle.x);
  return angle;
}

/// Products and sums are rounded one by one, as the CPU does.
__device__ inline void rotate(float& a, float& b, float2 angle) {
  const float x = a, y = b;
  a = __fsub_rn(__fmul_rn(x, angle.x), __fmul_rn(y, angle.y));
  b = __fadd_rn(__fmul_rn(x, angle.y), __fmul_rn(y, angle.x));
}

__device__ inline void rotate_inverse(float& a, float& b, float2 angle) {
  rotate(a, b, make_float2(angle.x, -angle.y));
}

}  // namespace ds4::cuda
