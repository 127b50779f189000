// Attention of up to 16 rows over their windows and compressed rows (docs/model.md §5).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

struct AttentionArguments {
  const RowInfo* rows = nullptr;
  uint32_t row_count = 0;
  uint32_t heads = 0;
  uint32_t layer = 0;  // index into RowInfo::layers
  uint32_t ratio = 0;
  uint32_t top_k = 0;  // ratio 4: rows that see more attend to `selected` only
  uint32_t max_compressed =
      0;  // no row of the pass sees more; of the whole capacity, to fix the grid of a graph
  const float* query = nullptr;        // [row_count][heads][512] as projected
  const float* sinks = nullptr;        // [heads]
  const float* frequencies = nullptr;  // [32], the table of the layer
  const uint32_t* selected = nullptr;  // [row_count][top_k], ascending; null unless ratio is 4
  void* scratch = nullptr;             // attention_scratch_bytes(), on 16 bytes
  float* out = nullptr;                // [row_count][heads * 512], un-rotated
  int8_t* codes = nullptr;             // the same as int8 [row_count][heads * 512]
  float* scales = nullptr;             // [row_count][heads * 512 / 32]
};

/// Device bytes that attend() needs. Grows with row_count, heads and the rows seen.
size_t attention_scratch_bytes(uint32_t row_count, uint32_t heads, uint32_t ratio, uint32_t top_k,
                               uint32_t max_compressed);

cudaError_t attend(const AttentionArguments& arguments, cudaStream_t stream);

}  // namespace ds4::cuda
