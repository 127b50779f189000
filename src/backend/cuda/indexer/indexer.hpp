// The indexer of ratio-4 layers: scores of compressed rows and the choice of the best (docs/model.md §7).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

/// Rows of the pass that see at most top_k compressed rows are left alone by both steps.
struct IndexerArguments {
  const RowInfo* rows = nullptr;
  uint32_t row_count = 0;
  uint32_t layer = 0;  // index into RowInfo::layers
  uint32_t heads = 0;  // index heads, at most 160
  uint32_t top_k = 0;  // at least 1
  uint32_t max_compressed =
      0;  // no row of the pass sees more; of the whole capacity, to fix the grid of a graph
  const float* query = nullptr;         // [row_count][heads][128] as projected
  const float* frequencies = nullptr;   // [32], the table of compressed layers
  const float* head_weights = nullptr;  // [row_count][heads], not yet times 1 / sqrt(128 heads)
  float* scores = nullptr;              // [row_count][index_score_stride(max_compressed)]
  uint32_t* selected = nullptr;         // [row_count][top_k], ascending
};

/// Floats of a row of scores.
inline size_t index_score_stride(uint32_t max_compressed) {
  return (size_t{max_compressed} + 127) / 128 * 128;
}

cudaError_t score_index_rows(const IndexerArguments& arguments, cudaStream_t stream);
/// The top_k best scores; ties go to the lower row, NaN ranks with -infinity.
cudaError_t select_rows(const IndexerArguments& arguments, cudaStream_t stream);

}  // namespace ds4::cuda
