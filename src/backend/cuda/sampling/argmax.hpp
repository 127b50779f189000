// Greedy choice of the next token on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace ds4::cuda {

struct ArgmaxArguments {
  const float* logits = nullptr;  // [row_count][vocabulary]
  uint32_t row_count = 0;
  uint32_t vocabulary = 0;
  void* scratch = nullptr;     // argmax_scratch_bytes(), on 8 bytes
  int32_t* token = nullptr;    // [row_count]: first index of the maximum; NaN never wins unless all are
  int32_t* has_nan = nullptr;  // [row_count]: 1 if any logit is NaN, else 0
};

size_t argmax_scratch_bytes(uint32_t row_count);
cudaError_t argmax(const ArgmaxArguments& arguments, cudaStream_t stream);

}  // namespace ds4::cuda
