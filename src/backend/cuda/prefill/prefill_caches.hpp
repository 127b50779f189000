// What a layer remembers of a prefill chunk, and the rows its attention reads (docs/model.md §5.1, §6,
// §11.3).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/device_types.hpp"
#include "backend/cuda/state/update_caches.hpp"

namespace ds4::cuda {

/// A chunk of consecutive tokens of one sequence, in one layer.
struct PrefillCaches {
  const LayerCache* cache = nullptr;  // device memory
  uint64_t position = 0;              // of the first token
  uint32_t tokens = 0;
  uint32_t ratio = 0;                  // 0, 4 or 128
  const float* frequencies = nullptr;  // [32], the table of the layer
  const float* q_low = nullptr;        // [tokens][q_rank], as projected
  const float* q_norm = nullptr;       // [q_rank]
  uint32_t q_rank = 0;                 // a multiple of 32
  __half* q_low_half = nullptr;        // out [tokens][q_rank], normalised
  const float* kv = nullptr;           // [tokens][512], as projected
  const float* kv_norm = nullptr;      // [512]
  CompressorJob compressor, index_compressor;
  /// Out: [older + tokens + compressed][512]: raw rows before the chunk, of the chunk, all compressed rows up
  /// to its end, as the packed caches give them back, rounded to F16.
  __half* rows = nullptr;
};

/// Raw rows before the chunk that its tokens still see.
uint32_t prefill_older_rows(uint64_t position);

/// Takes the chunk into the caches of the layer and fills `rows` and `q_low_half`. Pages for the rows that
/// complete must be in place. The state afterwards does not depend on where chunks are cut.
cudaError_t prefill_update_caches(const PrefillCaches& update, cudaStream_t stream);

}  // namespace ds4::cuda
