// Query heads after their projection: normalised and rotated; index query heads rotated and rounded.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

struct HeadsArguments {
  const RowInfo* rows = nullptr;
  uint32_t row_count = 0;
  uint32_t heads = 0;
  float* query = nullptr;              // [row_count][heads][512], in place
  const float* frequencies = nullptr;  // [32], the table of the layer (layer_frequencies() in rope.cuh)
  // Ratio-4 layers; index_heads 0 elsewhere. Rows that see at most top_k compressed rows are left alone.
  uint32_t index_heads = 0;
  uint32_t top_k = 0;
  float* index_query = nullptr;  // [row_count][index_heads][128], in place
};

cudaError_t prepare_heads(const HeadsArguments& arguments, cudaStream_t stream);

}  // namespace ds4::cuda
