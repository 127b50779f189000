// Attention of the tokens of a prefill pass, all of one sequence, over F16 rows decoded once per layer
// (docs/model.md §5).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

/// Row numbers of `rows`: first the `older` raw rows before the pass (positions position - older ..
/// position - 1), then the raw rows of the pass, then compressed row 0, 1, 2, ...
/// All arrays of F16 are aligned to 16 bytes.
struct PrefillAttention {
  const __half* rows = nullptr;  // [older + tokens + compressed][512], as the caches would give them back
  uint32_t older = 0;            // min(position, window - 1)
  uint32_t tokens = 0;
  uint64_t position = 0;  // of the first token of the pass
  uint32_t heads = 0;     // any number; multiples of 64 have a kernel of their own on sm_90
  uint32_t ratio = 0;     // 0, 4 or 128
  uint32_t top_k = 0;     // ratio 4: tokens that see more compressed rows attend to `selected` only
  const uint32_t* selected = nullptr;  // [tokens][top_k] compressed rows, ascending; null unless ratio is 4
  const __half* query = nullptr;       // [tokens][heads][512], as projected: normalised and rotated here
  const float* sinks = nullptr;        // [heads]
  const float* frequencies = nullptr;  // [32], the table of the layer
  __half* out = nullptr;               // [tokens][heads * 512], un-rotated, clamped to the finite range
};

/// A token's result does not depend on the other tokens of the pass or where the pass began.
cudaError_t prefill_attention(const PrefillAttention& arguments, cudaStream_t stream,
                              PrefillKernel kernel = PrefillKernel::best);

}  // namespace ds4::cuda
