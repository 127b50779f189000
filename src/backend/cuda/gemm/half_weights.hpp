// Weights of any format as F16 matrices, made once per call of half_gemm() and read many times.
#pragma once

#include <cuda_fp16.h>

#include <span>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

/// Value = high + low; `low` may be null. Rounded to nearest, magnitudes above 65504 clamped to it.
struct HalfWeights {
  DeviceMatrix w;
  __half* high = nullptr;  // [rows][cols]
  __half* low = nullptr;
};

inline constexpr int max_half_weights = 8;

/// One launch for at most max_half_weights matrices. Columns are a multiple of 32 and of the block of the
/// format; all addresses are aligned to 16 bytes.
cudaError_t half_weights(std::span<const HalfWeights> weights, cudaStream_t stream);

}  // namespace ds4::cuda
