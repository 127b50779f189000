// A random choice of the next token on the device; the same token as sampling::draw() on the CPU.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "sampling/weight.hpp"

namespace ds4::cuda {

struct DrawArguments {
  const float* logits = nullptr;  // [vocabulary], on 16 bytes
  uint32_t vocabulary = 0;
  sampling::Softmax softmax;  // of the largest finite logit
  uint32_t top_k = 0;         // 0: off
  float top_p = 1;            // 1: off
  float uniform = 0;          // [0, 1), 24 bits
  void* scratch = nullptr;    // draw_scratch_bytes(), on 8 bytes
  int32_t* token = nullptr;   // device or pinned host memory; draw_undecided if there are too many candidates
};

/// More tokens than `draw_candidates` lie near the end of the choice: the CPU must choose.
inline constexpr int32_t draw_undecided = -1;
inline constexpr uint32_t draw_candidates = 4096;

size_t draw_scratch_bytes(uint32_t vocabulary);
/// Once after the scratch was allocated.
cudaError_t prepare_draw_scratch(void* scratch, uint32_t vocabulary, cudaStream_t stream);
cudaError_t draw(const DrawArguments& arguments, cudaStream_t stream);

}  // namespace ds4::cuda
