// Hyper-connection kernels: streams in and out of a sublayer (docs/model.md §4).
#pragma once

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

/// Columns of one stream that a block of leave_and_mix() covers: its slice of the flat row is 4 times as
/// wide.
inline constexpr int mix_slice_columns = 128;
/// Mix values and the sum of squares.
inline constexpr int mix_values = 25;

/// One mixer: fn [24 or 4][4d] (F32, F16 or BF16), scale and base as F32 on the device.
struct DeviceMixer {
  DeviceMatrix fn;
  const float* scale = nullptr;
  const float* base = nullptr;
};

/// Buffers of the streams; d is the model width.
struct StreamBuffers {
  float* streams = nullptr;  // [rows][4][d]
  float* partial = nullptr;  // [rows][d / 128][25]
  float* weights = nullptr;  // [rows][24]: pre, post, comb of the sublayer in progress
  float* normed = nullptr;   // [rows][d]: input of the sublayer
  int8_t* codes = nullptr;   // [rows][d]: the same, rounded
  float* scales = nullptr;   // [rows][d / 32]
  int width = 0;
};

/// Writes the output of the sublayer in progress (`out` [rows][d], null for none) back to the streams, then,
/// if `mixer` is not null, computes the partial mix values of the next sublayer from the new streams.
cudaError_t leave_and_mix(const StreamBuffers& buffers, const float* out, const DeviceMixer* mixer, int rows,
                          cudaStream_t stream);

/// Finishes the mix values (24: pre, post and Sinkhorn), mixes the streams, normalises with `norm` [d],
/// rounds.
cudaError_t enter_sublayer(const StreamBuffers& buffers, const DeviceMixer& mixer, const float* norm,
                           int rows, cudaStream_t stream);

/// The same for the final merge with its 4 values.
cudaError_t enter_head(const StreamBuffers& buffers, const DeviceMixer& mixer, const float* norm, int rows,
                       cudaStream_t stream);

}  // namespace ds4::cuda
