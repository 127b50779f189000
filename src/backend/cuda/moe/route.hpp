// Routing of tokens to experts (docs/model.md §8.1).
#pragma once

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

struct RouteJob {
  const float* logits = nullptr;   // [rows][experts]
  const RowInfo* rows = nullptr;   // token ids, for hash routing
  const float* bias = nullptr;     // [experts]; layers routed by score
  const int32_t* table = nullptr;  // [vocabulary][used]; layers routed by token id
  int experts = 0;                 // at most 1024
  int used = 0;                    // at most 32
  float scale = 1;
  int32_t* selected = nullptr;  // out [rows][used], ascending
  float* weights = nullptr;     // out [rows][used]
};

cudaError_t route(const RouteJob& job, int rows, cudaStream_t stream);

}  // namespace ds4::cuda
