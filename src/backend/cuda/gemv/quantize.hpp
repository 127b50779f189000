// F32 rows to the int8 form of activations: 32 columns share one F32 scale.
#pragma once

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

struct QuantizeRows {
  const float* input = nullptr;  // [rows][stride]
  int8_t* codes = nullptr;       // [rows][stride]
  float* scales = nullptr;       // [rows][stride / 32]
  uint32_t rows = 0;
  uint32_t cols = 0;    // columns to do in each row, a multiple of 32, at most stride
  uint32_t stride = 0;  // a multiple of 32
};

/// Pointers aligned to 16 (input), 4 (codes, scales).
cudaError_t quantize(const QuantizeRows& rows, cudaStream_t stream);

}  // namespace ds4::cuda
