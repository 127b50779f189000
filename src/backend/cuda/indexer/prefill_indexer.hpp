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
  uint64_t position = 0;                  // of the first token of the pass
  uint32_t heads = 0;                     // index heads, at most 256
  uint32_t top_k = 0;                     // at least 1
  const float* query = nullptr;           // [tokens][heads][128] as projected, on 16 bytes
  const float* head_weights = nullptr;    // [tokens][heads], not yet times 1 / sqrt(128 heads)
  const float* frequencies = nullptr;     // [32], the table of the layer
  const uint8_t* const* pages = nullptr;  // LayerCache::index_pages of the layer
  uint32_t* selected = nullptr;           // [tokens][top_k], ascending; ties go to the lower row
  void* scratch = nullptr;                // prefill_indexer_scratch_bytes(), aligned to 256
};

/// For passes of `tokens` tokens of which the last sees `compressed` rows; bounded by working through the
/// pass in slices.
size_t prefill_indexer_scratch_bytes(uint32_t tokens, uint32_t heads, uint32_t compressed);

/// A token's rows do not depend on the other tokens of the pass or where the pass began.
cudaError_t prefill_index_rows(const PrefillIndexer& arguments, cudaStream_t stream,
                               PrefillKernel kernel = PrefillKernel::best);

/// A slice of a pass at work, for the kernels and their tests: tokens first .. first + tokens - 1 of it.
struct IndexSlice {
  uint32_t first = 0;
  uint32_t tokens = 0;
  uint32_t groups = 0;          // of 64 heads; those that do not exist have weight 0
  size_t score_stride = 0;      // a multiple of 128
  uint16_t* queries = nullptr;  // BF16 [tokens][groups][64 heads][128], rounded, columns as in index_key.cuh
  float* weights = nullptr;     // [tokens][groups][64], scaled
  float* scores = nullptr;      // [tokens][score_stride]
};

/// The three steps of prefill_index_rows() on a slice.
cudaError_t prepare_index_queries(const PrefillIndexer& arguments, const IndexSlice& slice,
                                  cudaStream_t stream);
cudaError_t score_index_slice(const PrefillIndexer& arguments, const IndexSlice& slice, PrefillKernel kernel,
                              cudaStream_t stream);
cudaError_t select_slice_rows(const PrefillIndexer& arguments, const IndexSlice& slice, cudaStream_t stream);

}  // namespace ds4::cuda
