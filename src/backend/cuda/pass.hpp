// One pass of up to 16 rows through the model on the device, captured as a CUDA graph for every row count.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/device_types.hpp"
#include "backend/cuda/device_weights.hpp"
#include "backend/cuda/gemv/gemv.hpp"
#include "model/shape.hpp"

namespace ds4::cuda {

/// Buffers, graphs and the stream of a backend. Not thread-safe.
class Pass {
 public:
  /// Throws CudaFailure.
  Pass(const model::ModelShape& shape, const DeviceWeights& weights, cudaStream_t stream);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  /// Bytes that the constructor takes from the device.
  static uint64_t scratch_bytes(const model::ModelShape& shape);

  /// Directions [layers][d] in device memory for rows that are steered; null: none.
  void set_directions(const float* directions) { directions_ = directions; }

  /// Computes `rows` (1..max_rows); rows of one sequence follow each other in order. Streams stay on the
  /// device.
  void run(std::span<const RowInfo> rows);
  /// Computes the logits of `count` (at most max_rows) rows of the pass before, from row `first` on. Device
  /// memory [count][V], filled when the stream gets there, that the next call writes over.
  const float* logits(size_t first, size_t count);

 private:
  struct Buffers;
  void enqueue_layers(int rows);
  void enqueue_layer(size_t index, int rows);
  void attention(const DeviceLayer& layer, size_t index, int rows);
  void attend_rows(const DeviceLayer& layer, size_t index, int rows);
  void experts(const DeviceLayer& layer, int rows);
  void edit_output(size_t index, Component component, int rows);

  const model::ModelShape& shape_;
  const DeviceWeights& weights_;
  cudaStream_t stream_;
  std::unique_ptr<Buffers> buffers_;
  const float* directions_ = nullptr;
  // By number of rows, for passes in which some row sees more index rows than it may choose (the others need
  // no search), and for passes in which some row is steered.
  std::array<std::array<cudaGraphExec_t, max_rows + 1>, 4> graphs_{};
  bool search_ = false, steered_ = false;
  int rows_ = 0;
};

}  // namespace ds4::cuda
