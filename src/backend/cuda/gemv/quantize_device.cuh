// Activations to int8 inside a kernel: a warp that holds 32 consecutive values, one in each lane.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device/magnitude.cuh"

namespace ds4::cuda {

/// The scale of a block from the bits of its largest magnitude (magnitude_bits()): codes then reach 127. NaN
/// if there is one in the block, so that every product with it is NaN too.
__device__ __forceinline__ float activation_scale(uint32_t largest) {
  return __fdiv_rn(__uint_as_float(largest), 127.0f);
}

/// Rounds to nearest, ties to even, as the CPU does; a block of zeros (scale 0), or with NaN, has codes 0.
__device__ __forceinline__ int activation_code(float value, float scale) {
  return scale > 0.0f ? max(-128, min(127, __float2int_rn(__fdiv_rn(value, scale)))) : 0;
}

/// Every lane of a full warp calls this with its value of a block of 32; lane l writes codes[l], lane 0 the
/// scale.
__device__ __forceinline__ void quantize_block_of_warp(float value, int8_t* codes, float* scale) {
  const float d = activation_scale(__reduce_max_sync(~0u, magnitude_bits(value)));
  const uint32_t lane = threadIdx.x % 32;
  codes[lane] = static_cast<int8_t>(activation_code(value, d));
  if (lane == 0) *scale = d;
}

}  // namespace ds4::cuda
