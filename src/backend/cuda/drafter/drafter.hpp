// The MTP drafter on the device: its rows follow the sequence, its drafts do not change it (docs/model.md
// §12).
//
// The row at position p pairs the streams after token p with the embedding of token p + 1 and predicts token
// p + 2.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/device_types.hpp"
#include "backend/cuda/device_weights.hpp"
#include "backend/cuda/drafter/draft_inputs.hpp"
#include "backend/cuda/pass.hpp"
#include "model/shape.hpp"

namespace ds4::cuda {

/// The most pairs of one call: a pass of the drafter has as many rows.
inline constexpr size_t max_draft_pairs = max_rows;

/// Streams of a token and the token after it.
struct DraftPair {
  const float* before = nullptr;  // [4][d] in device memory
  Token next = -1;
  uint64_t position = 0;  // of the token of `before`
  const LayerCache* layers = nullptr;
};

/// Has buffers of its own beside those of the model's passes. Not thread-safe.
class Drafter {
 public:
  /// `weights` holds a drafter. Throws CudaFailure.
  Drafter(const model::ModelShape& shape, const DeviceWeights& weights, cudaStream_t stream);

  /// Bytes that the constructor takes from the device.
  static uint64_t scratch_bytes(const model::ModelShape& shape);

  /// Writes the drafter's KV rows of 1..max_draft_pairs pairs; those of one sequence follow each other in
  /// order.
  void seed(std::span<const DraftPair> pairs);
  /// Proposes tokens after `pair`.
  Result<std::vector<backend::Draft>> draft(const DraftPair& pair, const backend::DraftRequest& request);

 private:
  void enter(std::span<const DraftPair> pairs);

  const model::ModelShape& shape_;
  const DeviceWeights& weights_;
  cudaStream_t stream_;
  Pass pass_;
  DeviceBuffer<float> embedding_;  // [16][4][d]
  DeviceBuffer<float> values_;     // [16 * 5][d]
  DeviceBuffer<int8_t> codes_;
  DeviceBuffer<float> scales_;
  DeviceBuffer<float> projected_;  // [16 * 5][d]: embeddings, then streams
  DeviceBuffer<const float*> before_;
  PinnedBuffer<const float*> host_before_;
  DeviceBuffer<uint8_t> argmax_scratch_;
  DeviceBuffer<DraftSummary> summary_;
  PinnedBuffer<DraftSummary> host_summary_;
};

}  // namespace ds4::cuda
