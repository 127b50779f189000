// What a layer remembers of the rows of a pass: KV rows into the ring, projections through the compressors.
#pragma once

#include "backend/cuda/device_types.hpp"
#include "backend/cuda/hc/hyper_connection.hpp"

namespace ds4::cuda {

/// Projections of one compressor, and its small parameters.
struct CompressorJob {
  const float* values = nullptr;  // [rows][width]
  const float* gates = nullptr;   // [rows][width]
  const float* ape = nullptr;     // [ratio][width]
  const float* norm = nullptr;    // [dim]
};

struct CacheUpdate {
  const RowInfo* rows = nullptr;
  int layer = 0;
  uint32_t ratio = 0;
  const float* frequencies = nullptr;  // [2][32]
  float* q_low = nullptr;              // [rows][rank]; normalised in place and rounded
  int8_t* q_codes = nullptr;
  float* q_scales = nullptr;  // [rows][rank / 32]
  const float* q_norm = nullptr;
  int rank = 0;
  const float* kv = nullptr;  // [rows][512]
  const float* kv_norm = nullptr;
  CompressorJob compressor, index_compressor;
  MixFinish mix;
};

/// Everything of this must be in place before the first row of the pass attends.
cudaError_t update_caches(const CacheUpdate& update, int rows, cudaStream_t stream);

}  // namespace ds4::cuda
