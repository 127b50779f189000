// The indexer of ratio-4 layers for a prefill pass: scores on tensor cores, then the exact best rows
// (docs/model.md §7).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

/// Tokens that see at most top_k compressed rows are left alone.
struct PrefillIndexer {
  uint32_t tokens = 0;
  uint64_t position = 0;  // of the first token of the pass
  uint32_t heads = 0;     // index heads
  uint32_t top_k = 0;
  float* query = nullptr;                 // [tokens][heads][128] as projected; rotated and rounded in place
  const float* head_weights = nullptr;    // [tokens][heads], not yet times 1 / sqrt(128 heads)
  const float* frequencies = nullptr;     // [32], the table of the layer
  const uint8_t* const* pages = nullptr;  // LayerCache::index_pages of the layer
  uint32_t* selected = nullptr;           // [tokens][top_k], ascending; ties go to the lower row
  void* scratch = nullptr;                // prefill_indexer_scratch_bytes(), aligned to 256
};

/// For passes of `tokens` tokens of which the last sees `compressed` rows; bounded by working through the
/// pass in slices.
size_t prefill_indexer_scratch_bytes(uint32_t tokens, uint32_t heads, uint32_t compressed);

cudaError_t prefill_index_rows(const PrefillIndexer& arguments, cudaStream_t stream);

}  // namespace ds4::cuda
