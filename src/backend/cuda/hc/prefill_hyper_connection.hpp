// Hyper-connection kernels for the tokens of a prefill chunk (docs/model.md §4).
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_types.hpp"
#include "backend/cuda/hc/hyper_connection.hpp"

namespace ds4::cuda {

/// The streams of a run of tokens and what belongs to their mixing; d is the model width.
struct PrefillStreams {
  float* streams = nullptr;  // [tokens][4][d]
  float* partial = nullptr;  // prefill_mix_partials() floats
  float* weights = nullptr;  // [tokens][24]: pre, post, comb of the sublayer in progress
  uint32_t tokens = 0;
  uint32_t width = 0;  // d, a multiple of 32, at most 8192
};

/// Floats for the partial mix values of `tokens` tokens.
size_t prefill_mix_partials(uint32_t tokens, uint32_t width);

/// Writes the output of the sublayer in progress (`out` [tokens][d], null for none) back to the streams,
/// then, if `mixer` is not null, leaves the mixing weights of the next sublayer (fn of 24 rows) or of the
/// head (4 rows) in `weights`. A token's results do not depend on the other tokens.
cudaError_t prefill_leave_and_mix(const PrefillStreams& streams, const float* out, const DeviceMixer* mixer,
                                  cudaStream_t stream);

/// The normalised mixture, value = high + low; null planes are not written.
struct MixedRows {
  __half* high = nullptr;  // [tokens][d]
  __half* low = nullptr;   // [tokens][d]
  float* full = nullptr;   // [tokens][d]
};

/// Mixes the streams with the first four of `weights` and normalises with `norm` [d].
cudaError_t prefill_enter(const PrefillStreams& streams, const float* norm, const MixedRows& out,
                          cudaStream_t stream);

}  // namespace ds4::cuda
