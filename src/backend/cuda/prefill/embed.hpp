// Token embeddings into the residual streams (docs/model.md §4).
#pragma once

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

/// The types of an embedding table that embed_tokens() reads: F32, F16, BF16, Q8_0.
bool is_embedding_type(format::TensorType type);

/// streams [row_count][4][table.cols] = four copies of the row of each row's token.
cudaError_t embed_tokens(const DeviceMatrix& table, const RowInfo* rows, uint32_t row_count, float* streams,
                         cudaStream_t stream);

}  // namespace ds4::cuda
