// Device memory of a prefill chunk: one block, in which attention and experts take turns with the same part.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_types.hpp"
#include "backend/cuda/hc/prefill_hyper_connection.hpp"
#include "model/shape.hpp"

namespace ds4::cuda {

/// Pointers into the block for chunks of up to a number of tokens; d is the model width.
struct ChunkBuffers {
  RowInfo* rows = nullptr;    // [tokens]
  float* streams = nullptr;   // [tokens][4][d]
  float* partial = nullptr;   // prefill_mix_partials()
  float* weights = nullptr;   // [tokens][24]
  __half* high = nullptr;     // [tokens][d], input of a sublayer
  __half* low = nullptr;      // [tokens][d]
  float* sublayer = nullptr;  // [tokens][d], output of a sublayer
  uint8_t* gemm_scratch = nullptr;

  // Attention.
  float* q_low = nullptr;        // [tokens][q_rank]
  __half* q_low_half = nullptr;  // the same, normalised
  float* kv = nullptr;           // [tokens][512]
  float* values = nullptr;       // [tokens][1024]
  float* gates = nullptr;        // [tokens][1024]
  float* index_values = nullptr;
  float* index_gates = nullptr;
  float* index_weights = nullptr;  // [tokens][index heads]
  float* index_query = nullptr;    // [tokens][index heads][128]
  uint32_t* selected = nullptr;    // [tokens][top k]
  uint8_t* index_scratch = nullptr;
  __half* attention_rows = nullptr;  // [127 + tokens + compressed][512]
  __half* query = nullptr;           // [tokens][heads][512]
  __half* attended = nullptr;        // [tokens][heads][512]
  __half* output_low = nullptr;      // [tokens][groups * rank]

  // Experts.
  float* router = nullptr;          // [tokens][experts]
  int32_t* experts = nullptr;       // [tokens][used]
  float* expert_weights = nullptr;  // [tokens][used]
  uint8_t* expert_scratch = nullptr;

  // Logits, 16 rows at a time.
  float* logits = nullptr;  // [16][vocabulary]
  int8_t* codes = nullptr;  // [16][d]
  float* scales = nullptr;  // [16][d / 32]

  size_t bytes = 0;  // of the whole block

  /// The layout from `block` on, aligned to 256 bytes; null only counts.
  ChunkBuffers(const model::ModelShape& shape, uint32_t tokens, size_t gemm_scratch_bytes, uint8_t* block);

  /// The same for the tokens from `first` on: inputs move, what is scratch stays.
  ChunkBuffers from(const model::ModelShape& shape, uint32_t first) const;

  PrefillStreams mixing(uint32_t tokens, uint32_t width) const {
    return {streams, partial, weights, tokens, width};
  }
};

}  // namespace ds4::cuda
