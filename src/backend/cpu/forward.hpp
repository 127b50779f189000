// The forward pass of the CPU backend. Prefill chunks, decode batches and drafts all run through it, row by
// row in the same arithmetic: a token's result does not depend on what else is in the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "backend/cpu/batch.hpp"
#include "backend/cpu/cpu_weights.hpp"
#include "backend/cpu/scratch.hpp"
#include "base/thread_pool.hpp"
#include "model/shape.hpp"

namespace ds4::cpu {

/// Sees intermediate values; used by tests and tools that capture activations. Called from the calling
/// thread.
class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  /// Streams [T][4][d] after `layer`.
  virtual void on_streams(size_t layer, std::span<const float> streams) = 0;
  /// Experts of batch row `row`, ascending.
  virtual void on_experts(size_t layer, size_t row, std::span<const uint32_t> experts) = 0;
  /// Index rows chosen for batch row `row`, with the scores of all visible rows.
  virtual void on_index_rows(size_t layer, size_t row, std::span<const uint32_t> selected,
                             std::span<const float> scores) = 0;
};

/// What a pass needs and does not own.
struct ForwardContext {
  const model::ModelShape& shape;
  const CpuWeights& weights;
  const RowCodec& codec;
  ThreadPool& pool;
  Scratch& scratch;
  ForwardObserver* observer = nullptr;
  std::span<const float> directions;    // [layers][d]: what steering removes; may be empty
  backend::Capture* capture = nullptr;  // its values have their final size
  ExpertInputSums* expert_inputs = nullptr;
};

/// Rotation angles of the batch's positions. First step of every pass.
void set_positions(const ForwardContext& context, const Batch& batch);

/// Streams of the batch from the embeddings of its tokens.
void embed(const ForwardContext& context, const Batch& batch);

/// One transformer layer on the streams of the batch. `layer_state(segment)` gives the cache of a segment.
using LayerStateOf = std::function<LayerState&(const Segment&)>;
void run_layer(const ForwardContext& context, const Layer& layer, size_t index, const Batch& batch,
               const LayerStateOf& layer_state);

/// First half of a layer. Exposed because the drafter runs parts of it.
void attention_sublayer(const ForwardContext& context, const Layer& layer, size_t index, const Batch& batch,
                        const LayerStateOf& layer_state);
/// Second half.
void moe_sublayer(const ForwardContext& context, const Layer& layer, size_t index, const Batch& batch);

/// Mixes the streams of `rows` rows into the sublayer's normed input (scratch.normed) and keeps the mixing
/// weights (scratch.hc).
void enter_sublayer(const ForwardContext& context, const HyperConnectionMixer& mixer, const Vector& norm,
                    size_t rows);
/// Writes the sublayer's output (scratch.sublayer) back to the streams.
void leave_sublayer(const ForwardContext& context, size_t rows);

/// Finished KV rows of the batch (projection, norm, RoPE, rounding) into scratch.chunk_rows, from scratch.x.
void make_kv_rows(const ForwardContext& context, const Layer& layer, const Batch& batch);
/// Moves the newest rows of the batch into the windows of its sequences.
void store_kv_rows(const ForwardContext& context, const Batch& batch, const LayerStateOf& layer_state);

/// Logits of streams [rows][4][d] through a head merge and the vocabulary projection; logits [rows][V].
void output_logits(const ForwardContext& context, const HyperConnectionMixer& head, const Vector& norm,
                   const float* streams, size_t rows, float* logits);

}  // namespace ds4::cpu
