#include "backend/cuda/prefill/chunk_buffers.hpp"

#include <algorithm>

#include "backend/cuda/gemm/half_experts.hpp"
#include "backend/cuda/indexer/prefill_indexer.hpp"

namespace ds4::cuda {
namespace {

constexpr size_t alignment_bytes = 256;

// Hands out aligned parts of a block.
class Places {
 public:
  explicit Places(uint8_t* block) : block_(block) {}

  template <class T>
  void take(T*& pointer, size_t count) {
    if (block_ != nullptr) pointer = reinterpret_cast<T*>(block_ + bytes);
    bytes += (count * sizeof(T) + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  }

  size_t bytes = 0;

 private:
  uint8_t* block_;
};

// The most that any pass needs: few rows leave room for longer slices of tokens, many rows for longer scores.
size_t index_scratch_bytes(const model::ModelShape& shape, uint32_t tokens) {
  constexpr uint32_t step = 128;  // rows of scores are padded to this
  const auto most = static_cast<uint32_t>(shape.max_context / model::csa_ratio);
  size_t bytes = 0;
  for (uint64_t compressed = step; compressed < most + uint64_t{step}; compressed += step) {
    bytes = std::max(
        bytes, prefill_indexer_scratch_bytes(tokens, shape.index_heads, static_cast<uint32_t>(compressed)));
  }
  return bytes;
}

}  // namespace

ChunkBuffers::ChunkBuffers(const model::ModelShape& s, uint32_t tokens, size_t gemm_scratch_bytes,
                           uint8_t* block) {
  const size_t n = tokens, d = s.width, index_width = size_t{s.index_heads} * model::index_head_dim;
  const size_t compressor = model::compressor_width(model::csa_ratio, model::head_dim),
               index_compressor = model::compressor_width(model::csa_ratio, model::index_head_dim);
  size_t compressed = 0;
  for (const uint32_t ratio : s.ratios) {
    if (ratio != 0) compressed = std::max<size_t>(compressed, s.max_context / ratio);
  }
  Places places(block);
  places.take(rows, n);
  places.take(streams, n * model::streams * d);
  places.take(partial, prefill_mix_partials(tokens, s.width));
  places.take(weights, n * model::mix_width);
  places.take(high, n * d);
  places.take(low, n * d);
  places.take(sublayer, n * d);
  places.take(gemm_scratch, gemm_scratch_bytes);
  places.take(logits, size_t{max_rows} * s.vocabulary);
  places.take(codes, size_t{max_rows} * d);
  places.take(scales, size_t{max_rows} * d / 32);
  const size_t shared = places.bytes;

  places.take(q_low, n * s.q_rank);
  places.take(q_low_half, n * s.q_rank);
  places.take(kv, n * model::head_dim);
  places.take(values, n * compressor);
  places.take(gates, n * compressor);
  places.take(index_values, n * index_compressor);
  places.take(index_gates, n * index_compressor);
  places.take(index_weights, n * s.index_heads);
  places.take(index_query, n * index_width);
  places.take(selected, n * s.index_top_k);
  places.take(index_scratch, index_scratch_bytes(s, tokens));
  places.take(attention_rows, (model::window - 1 + n + compressed) * model::head_dim);
  places.take(query, n * s.q_width());
  places.take(attended, n * s.q_width());
  places.take(output_low, n * s.low_width());
  bytes = places.bytes;

  places.bytes = shared;
  places.take(router, n * s.experts);
  places.take(experts, n * s.experts_used);
  places.take(expert_weights, n * s.experts_used);
  places.take(expert_scratch,
              half_experts_scratch_bytes(tokens, s.experts, s.experts_used, s.width, s.expert_width));
  bytes = std::max(bytes, places.bytes);
}

ChunkBuffers ChunkBuffers::from(const model::ModelShape& s, uint32_t first) const {
  ChunkBuffers view = *this;
  const size_t n = first;
  view.rows += n;
  view.streams += n * model::streams * s.width;
  view.weights += n * model::mix_width;
  view.high += n * s.width;
  view.low += n * s.width;
  view.q_low_half += n * s.q_rank;
  view.index_weights += n * s.index_heads;
  return view;
}

}  // namespace ds4::cuda
