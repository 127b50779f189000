// One chunk of a prompt through the model on the device, layer by layer, with F16 operands on tensor cores.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/device_types.hpp"
#include "backend/cuda/device_weights.hpp"
#include "backend/cuda/prefill/chunk_buffers.hpp"
#include "backend/cuda/state/cuda_expert_inputs.hpp"
#include "backend/cuda/state/cuda_sequence.hpp"
#include "ds4/token.hpp"
#include "model/shape.hpp"

namespace ds4::cuda {

/// The most tokens of a chunk, and how few it may have where memory is short.
inline constexpr uint32_t max_prefill_tokens = 4096;
inline constexpr uint32_t fewest_prefill_tokens = 128;

/// What is seen of a chunk while it is computed; nothing for null.
struct PrefillViews {
  backend::Capture* capture = nullptr;              // of the last tokens; its values have their final size
  const CudaExpertInputs* expert_inputs = nullptr;  // added to

  bool any() const { return capture != nullptr || expert_inputs != nullptr; }
};

/// Takes its memory on the first chunk. Not thread-safe.
class Prefill {
 public:
  /// Chunks of up to `chunk_tokens` (fewest_prefill_tokens .. max_prefill_tokens). Throws CudaFailure.
  Prefill(const model::ModelShape& shape, const DeviceWeights& weights, cudaStream_t stream,
          uint32_t chunk_tokens);
  ~Prefill();
  Prefill(const Prefill&) = delete;
  Prefill& operator=(const Prefill&) = delete;

  /// Device bytes for chunks of `tokens`; of the layers only types and sizes are read.
  static uint64_t scratch_bytes(const model::ModelShape& shape, std::span<const DeviceLayer> layers,
                                uint32_t tokens);

  /// Makes sure of the memory, and returns the tokens a chunk may have: fewer than asked for if the device no
  /// longer has room. Throws CudaFailure.
  uint32_t reserve();

  /// Directions [layers][d] in device memory for rows that are steered; null: none.
  void set_directions(const float* directions) { directions_ = directions; }

  /// Appends a chunk to the sequence, whose position stays for the caller to move. `layer_done` is called
  /// with the number of finished layers, while the device works on the next one; when it returns false the
  /// call stops and returns false, with caches that hold parts of the chunk. Logits, and the streams after
  /// the last layer, can be had for the last `logit_rows` tokens.
  bool run(CudaSequence& sequence, std::span<const Token> tokens, size_t logit_rows,
           const PrefillViews& views, const std::function<bool(size_t)>& layer_done);
  /// Computes the logits of `count` (at most max_rows) tokens of the chunk before, from token `first` on, all
  /// of them among its last logit_rows. Device memory [count][V], filled when the stream gets there, that the
  /// next call writes over.
  const float* logits(size_t first, size_t count);
  /// Streams [4][d] after the last layer of a token of the chunk before, one of its last logit_rows.
  const float* streams(size_t token) const {
    return buffers_->streams + token * model::streams * size_t{shape_.width};
  }

 private:
  struct Chunk;
  void upload(const CudaSequence& sequence, std::span<const Token> tokens);
  void run_layer(size_t index, Chunk& chunk);
  void update_caches(size_t index, const Chunk& chunk);
  void attend(size_t index, const Chunk& chunk);
  void experts(size_t index, const Chunk& chunk);
  void edit_output(size_t index, Component component, const Chunk& chunk);
  const float* frequencies(const DeviceLayer& layer) const;

  const model::ModelShape& shape_;
  const DeviceWeights& weights_;
  cudaStream_t stream_;
  uint32_t chunk_tokens_;
  const float* directions_ = nullptr;
  DeviceBuffer<uint8_t> memory_;
  DeviceBuffer<float> frequencies_;  // [2][32]
  std::optional<ChunkBuffers> buffers_;
  std::optional<PinnedBuffer<RowInfo>> host_rows_;
  std::array<cudaEvent_t, 2> layer_events_{};
};

}  // namespace ds4::cuda
