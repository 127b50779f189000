// What enters the drafter: a token's embedding and the streams of the token before it (docs/model.md §12).
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/device_types.hpp"
#include "sampling/logit_summary.hpp"

namespace ds4::cuda {

struct DraftInputs {
  const float* const* before = nullptr;   // [rows]: streams [4][d] of the token before, in device memory
  const float* embedding = nullptr;       // [rows][4][d], of which the first stream is read
  const float* embedding_norm = nullptr;  // [d]
  const float* hidden_norm = nullptr;     // [d]
  float* values = nullptr;  // [rows * 5][d]: normalised; the embeddings of all rows, then their streams
  int8_t* codes = nullptr;  // [rows * 5][d]: the same, rounded
  float* scales = nullptr;  // [rows * 5][d / 32]
  uint32_t width = 0;       // d, a multiple of 32
};

cudaError_t draft_inputs(const DraftInputs& inputs, int rows, cudaStream_t stream);

/// streams[r][h] = embedding[r] + hidden[r][h].
cudaError_t draft_streams(const float* embedding, const float* hidden, float* streams, int rows,
                          uint32_t width, cudaStream_t stream);

/// A draft as the host reads it.
struct DraftSummary {
  sampling::LogitSummary logits;
  float second = 0;  // the largest logit but that of logits.best
};

/// Fills `second` of a summary in device memory whose `logits` is there.
cudaError_t second_best(const float* logits, uint32_t vocabulary, DraftSummary* summary, cudaStream_t stream);

}  // namespace ds4::cuda
