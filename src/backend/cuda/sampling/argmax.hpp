// The first look at logits on the device: greedy choice, check for NaN, and a copy to keep.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_types.hpp"
#include "sampling/logit_summary.hpp"

namespace ds4::cuda {

struct ArgmaxArguments {
  const float* logits = nullptr;  // [row_count][vocabulary]
  uint32_t row_count = 0;
  uint32_t vocabulary = 0;
  float* copies[max_rows] = {};                 // where a row's logits also go; null: nowhere
  void* scratch = nullptr;                      // argmax_scratch_bytes(), on 16 bytes
  sampling::LogitSummary* summaries = nullptr;  // [row_count], in device or pinned host memory
};

size_t argmax_scratch_bytes(uint32_t row_count, uint32_t vocabulary);
/// Once after the scratch was allocated.
cudaError_t prepare_argmax_scratch(void* scratch, cudaStream_t stream);
/// Up to max_rows rows.
cudaError_t argmax(const ArgmaxArguments& arguments, cudaStream_t stream);

}  // namespace ds4::cuda
