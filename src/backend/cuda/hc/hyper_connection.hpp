// Hyper-connection kernels: streams in and out of a sublayer (docs/model.md §4).
#pragma once

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

/// Columns of one stream that a block covers: its slice of the flat row is 4 times as wide.
inline constexpr int mix_slice_columns = 128;
/// Mix values and the products of the four streams with each other.
inline constexpr int mix_values = 24 + 10;

/// One mixer: fn [24 or 4][4d] (F32, F16 or BF16), scale and base as F32 on the device.
struct DeviceMixer {
  DeviceMatrix fn;
  const float* scale = nullptr;
  const float* base = nullptr;
};

/// Buffers of the streams; d is the model width.
struct StreamBuffers {
  float* streams = nullptr;  // [rows][4][d]
  float* partial = nullptr;  // [rows][d / 128][34]: sums over a slice
  float* weights = nullptr;  // [rows][20]: post and comb of the sublayer in progress
  float* normed = nullptr;   // [rows][d]: input of the sublayer
  int8_t* codes = nullptr;   // [rows][d]: the same, rounded
  float* scales = nullptr;   // [rows][d / 32]
  int width = 0;
};

/// What is left of a sublayer's mixing after enter(): post and comb. A kernel between enter() and the next
/// leave_and_mix() does it for every row with finish_mix() (finish_mix.cuh).
struct MixFinish {
  DeviceMixer mixer;
  const float* partial = nullptr;
  float* weights = nullptr;
  int slices = 0;

  MixFinish() = default;
  MixFinish(const StreamBuffers& buffers, const DeviceMixer& of)
      : mixer(of),
        partial(buffers.partial),
        weights(buffers.weights),
        slices(buffers.width / mix_slice_columns) {}
};

/// Writes the output of the sublayer in progress (`out` [rows][d], null for none) back to the streams, then,
/// if `mixer` is not null, computes the partial mix values of the next sublayer from the new streams.
cudaError_t leave_and_mix(const StreamBuffers& buffers, const float* out, const DeviceMixer* mixer, int rows,
                          cudaStream_t stream);

/// Mixes the streams with the values of pre, normalises with `norm` [d], rounds: into a sublayer, or into the
/// output matrix with the final mixer.
cudaError_t enter(const StreamBuffers& buffers, const DeviceMixer& mixer, const float* norm, int rows,
                  cudaStream_t stream);

}  // namespace ds4::cuda
