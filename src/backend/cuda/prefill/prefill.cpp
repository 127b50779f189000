#include "backend/cuda/prefill/prefill.hpp"

#include <algorithm>

#include "backend/cpu/rope.hpp"
#include "backend/cuda/attention/prefill_attention.hpp"
#include "backend/cuda/gemm/half_experts.hpp"
#include "backend/cuda/gemv/gemv.hpp"
#include "backend/cuda/gemv/quantize.hpp"
#include "backend/cuda/indexer/prefill_indexer.hpp"
#include "backend/cuda/moe/route.hpp"
#include "backend/cuda/prefill/embed.hpp"
#include "backend/cuda/prefill/prefill_caches.hpp"
#include "backend/cuda/prefill/prefill_products.hpp"
#include "backend/cuda/steering/edit_output.hpp"

namespace ds4::cuda {
namespace {

size_t gemm_scratch_bytes(const model::ModelShape& shape, std::span<const DeviceLayer> layers) {
  size_t bytes = 0;
  for (const DeviceLayer& layer : layers) bytes = std::max(bytes, products_scratch_bytes(shape, layer));
  return bytes;
}

}  // namespace

// The tokens at work: all of the chunk, in the last layer only those whose logits are wanted.
struct Prefill::Chunk {
  const CudaSequence& sequence;
  ChunkBuffers buffers;
  uint64_t position = 0;
  uint32_t tokens = 0;
  uint32_t logit_rows = 0;
  uint32_t skipped = 0;  // tokens of the chunk before these
  PrefillViews views;

  // The last token sees more compressed rows than the indexer keeps.
  bool indexing(uint32_t ratio, uint32_t top_k) const {
    return ratio == model::csa_ratio && visible_rows(position + tokens - 1, ratio) > top_k;
  }
  void keep_last(const model::ModelShape& shape, uint32_t count) {
    buffers = buffers.from(shape, tokens - count);
    skipped += tokens - count;
    position += tokens - count;
    tokens = count;
  }
};

Prefill::Prefill(const model::ModelShape& shape, const DeviceWeights& weights, cudaStream_t stream,
                 uint32_t chunk_tokens)
    : shape_(shape),
      weights_(weights),
      stream_(stream),
      chunk_tokens_(std::clamp(chunk_tokens, fewest_prefill_tokens, max_prefill_tokens)) {
  for (cudaEvent_t& event : layer_events_) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
}

Prefill::~Prefill() {
  for (cudaEvent_t event : layer_events_) cudaEventDestroy(event);
}

uint64_t Prefill::scratch_bytes(const model::ModelShape& shape, std::span<const DeviceLayer> layers,
                                uint32_t tokens) {
  return ChunkBuffers(shape, tokens, gemm_scratch_bytes(shape, layers), nullptr).bytes;
}

uint32_t Prefill::reserve() {
  if (buffers_) return chunk_tokens_;
  const size_t gemm_scratch = gemm_scratch_bytes(shape_, weights_.layers);
  while (memory_.size() == 0) {
    try {
      memory_ = DeviceBuffer<uint8_t>(ChunkBuffers(shape_, chunk_tokens_, gemm_scratch, nullptr).bytes,
                                      "buffers of a prefill chunk");
    } catch (const CudaFailure& failure) {
      if (failure.error.code != ErrorCode::out_of_memory || chunk_tokens_ <= fewest_prefill_tokens) throw;
      chunk_tokens_ = std::max(chunk_tokens_ / 2, fewest_prefill_tokens);
    }
  }
  frequencies_ = DeviceBuffer<float>(2 * cpu::rope_pairs, "rotation frequencies");
  for (const bool compressed : {false, true}) {
    const auto table = cpu::rope_frequencies(compressed);
    check(cudaMemcpyAsync(frequencies_.data() + (compressed ? cpu::rope_pairs : 0), table.data(),
                          sizeof(table), cudaMemcpyHostToDevice, stream_),
          "rotation frequencies");
  }
  check(cudaStreamSynchronize(stream_), "rotation frequencies");
  host_rows_.emplace(chunk_tokens_, "row descriptions");
  buffers_.emplace(shape_, chunk_tokens_, gemm_scratch, memory_.data());
  return chunk_tokens_;
}

void Prefill::upload(const CudaSequence& sequence, std::span<const Token> tokens) {
  check(cudaStreamSynchronize(stream_), "the chunk before");  // the pinned rows are read by its copy
  for (size_t i = 0; i < tokens.size(); ++i) {
    (*host_rows_)[i] = {
        tokens[i], static_cast<uint32_t>(i), sequence.position() + i, static_cast<uint32_t>(tokens.size()),
        0,         sequence.layer_caches(),  sequence.steering};
  }
  check(cudaMemcpyAsync(buffers_->rows, host_rows_->data(), tokens.size() * sizeof(RowInfo),
                        cudaMemcpyHostToDevice, stream_),
        "row descriptions");
}

bool Prefill::run(CudaSequence& sequence, std::span<const Token> tokens, size_t logit_rows,
                  const PrefillViews& views, const std::function<bool(size_t)>& layer_done) {
  const auto count = static_cast<uint32_t>(tokens.size());
  sequence.prepare_rows(tokens.size(), stream_);
  upload(sequence, tokens);
  Chunk chunk{sequence, *buffers_, sequence.position(), count, static_cast<uint32_t>(logit_rows)};
  chunk.views = views;
  if (views.capture != nullptr)
    chunk.logit_rows = static_cast<uint32_t>(std::max(logit_rows, views.capture->rows));
  if (views.expert_inputs != nullptr) chunk.logit_rows = count;  // the last layer has experts too
  check(embed_tokens(weights_.embedding, buffers_->rows, count, buffers_->streams, stream_), "embed_tokens");
  check(prefill_leave_and_mix(buffers_->mixing(count, shape_.width), nullptr,
                              &weights_.layers.front().hc_attn, stream_),
        "prefill_leave_and_mix");
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    run_layer(l, chunk);
    check(cudaEventRecord(layer_events_[l % 2], stream_), "event");
    if (l == 0) continue;
    check(cudaEventSynchronize(layer_events_[(l - 1) % 2]), "prefill");
    if (!layer_done(l)) return false;
  }
  return true;
}

void Prefill::run_layer(size_t index, Chunk& chunk) {
  const DeviceLayer& layer = weights_.layers[index];
  const ChunkBuffers& b = chunk.buffers;
  const bool last = index + 1 == weights_.layers.size();
  const auto enter = [&](const float* norm, bool precise) {
    check(prefill_enter(b.mixing(chunk.tokens, shape_.width), norm,
                        {b.high, precise ? b.low : nullptr, nullptr}, stream_),
          "prefill_enter");
  };
  const auto leave = [&](const DeviceMixer* next) {
    check(prefill_leave_and_mix(b.mixing(chunk.tokens, shape_.width), b.sublayer, next, stream_),
          "prefill_leave_and_mix");
  };
  const bool indexing = chunk.indexing(layer.ratio, shape_.index_top_k);
  enter(layer.attn_norm, indexing);
  check(half_gemm(input_products(shape_, layer, b, indexing), static_cast<int>(chunk.tokens), b.gemm_scratch,
                  stream_),
        "first projections");
  update_caches(index, chunk);
  if (last) {
    if (chunk.logit_rows == 0) return;
    chunk.keep_last(shape_, chunk.logit_rows);
  }
  attend(index, chunk);
  edit_output(index, Component::attention, chunk);
  leave(&layer.hc_ffn);
  enter(layer.ffn_norm, true);
  experts(index, chunk);
  edit_output(index, Component::feed_forward, chunk);
  leave(last ? nullptr : &weights_.layers[index + 1].hc_attn);
}

// What may be seen and changed of a sublayer's output before it goes back to the streams.
void Prefill::edit_output(size_t index, Component component, const Chunk& chunk) {
  const size_t width = shape_.width;
  if (backend::Capture* capture = chunk.views.capture;
      capture != nullptr && capture->component == component) {
    const size_t values = capture->rows * width;
    check(cudaMemcpyAsync(capture->values.data() + index * values,
                          chunk.buffers.sublayer + chunk.tokens * width - values, values * sizeof(float),
                          cudaMemcpyDeviceToHost, stream_),
          "captured activations");
  }
  const SteeringScales& scales = chunk.sequence.steering;
  const float scale = component == Component::attention ? scales.attention : scales.feed_forward;
  if (directions_ == nullptr || scale == 0.0f) return;
  const OutputEdit edit{chunk.buffers.sublayer, directions_ + index * width, chunk.buffers.rows, component,
                        shape_.width};
  check(cuda::edit_output(edit, static_cast<int>(chunk.tokens), stream_), "edit_output");
}

const float* Prefill::frequencies(const DeviceLayer& layer) const {
  return frequencies_.data() + (layer.ratio == 0 ? 0 : cpu::rope_pairs);
}

void Prefill::update_caches(size_t index, const Chunk& chunk) {
  const DeviceLayer& layer = weights_.layers[index];
  const ChunkBuffers& b = chunk.buffers;
  PrefillCaches update;
  update.cache = chunk.sequence.layer_caches() + index;
  update.position = chunk.position;
  update.tokens = chunk.tokens;
  update.ratio = layer.ratio;
  update.frequencies = frequencies(layer);
  update.q_low = b.q_low;
  update.q_norm = layer.q_a_norm;
  update.q_rank = shape_.q_rank;
  update.q_low_half = b.q_low_half;
  update.kv = b.kv;
  update.kv_norm = layer.kv_norm;
  update.compressor = {b.values, b.gates, layer.compressor.ape, layer.compressor.norm};
  update.index_compressor = {b.index_values, b.index_gates, layer.index_compressor.ape,
                             layer.index_compressor.norm};
  update.rows = b.attention_rows;
  check(prefill_update_caches(update, stream_), "prefill_update_caches");
}

// Queries, selection, attention and output projections of the chunk's tokens.
void Prefill::attend(size_t index, const Chunk& chunk) {
  const DeviceLayer& layer = weights_.layers[index];
  const ChunkBuffers& b = chunk.buffers;
  const auto multiply = [&](std::span<const HalfGemmJob> jobs, const char* what) {
    check(half_gemm(jobs, static_cast<int>(chunk.tokens), b.gemm_scratch, stream_), what);
  };
  const float* table = frequencies(layer);
  const bool indexing = chunk.indexing(layer.ratio, shape_.index_top_k);
  multiply(query_products(shape_, layer, b, indexing), "query projections");
  if (indexing) {
    PrefillIndexer search;
    search.tokens = chunk.tokens;
    search.position = chunk.position;
    search.heads = shape_.index_heads;
    search.top_k = shape_.index_top_k;
    search.query = b.index_query;
    search.head_weights = b.index_weights;
    search.frequencies = table;
    search.pages = chunk.sequence.index_pages(index);
    search.selected = b.selected;
    search.scratch = b.index_scratch;
    check(prefill_index_rows(search, stream_), "prefill_index_rows");
  }
  PrefillAttention attention;
  attention.older = prefill_older_rows(chunk.position);
  // Rows of the whole chunk are there: those that skipped tokens see and these do not come first.
  const uint32_t unseen =
      prefill_older_rows(chunk.position - chunk.skipped) + chunk.skipped - attention.older;
  attention.rows = b.attention_rows + size_t{unseen} * model::head_dim;
  attention.tokens = chunk.tokens;
  attention.position = chunk.position;
  attention.heads = shape_.heads;
  attention.ratio = layer.ratio;
  attention.top_k = shape_.index_top_k;
  attention.selected = layer.ratio == model::csa_ratio ? b.selected : nullptr;
  attention.query = b.query;
  attention.sinks = layer.sinks;
  attention.frequencies = table;
  attention.out = b.attended;
  check(prefill_attention(attention, stream_), "prefill_attention");

  const HalfGemmJob low = output_a_product(shape_, layer, b), out = output_b_product(shape_, layer, b);
  multiply({&low, 1}, "output projection a");
  multiply({&out, 1}, "output projection b");
}

void Prefill::experts(size_t index, const Chunk& chunk) {
  const DeviceLayer& layer = weights_.layers[index];
  const ChunkBuffers& b = chunk.buffers;
  const HalfGemmJob router = router_product(shape_, layer, b);
  check(half_gemm({&router, 1}, static_cast<int>(chunk.tokens), b.gemm_scratch, stream_), "router");
  RouteJob routing;
  routing.logits = b.router;
  routing.rows = b.rows;
  routing.bias = layer.router_bias;
  routing.table = layer.router_table;
  routing.experts = static_cast<int>(shape_.experts);
  routing.used = static_cast<int>(shape_.experts_used);
  routing.scale = shape_.routed_scale;
  routing.selected = b.experts;
  routing.weights = b.expert_weights;
  check(route(routing, static_cast<int>(chunk.tokens), stream_), "route");
  HalfExperts job;
  job.gate = layer.gate_experts;
  job.up = layer.up_experts;
  job.down = layer.down_experts;
  job.shared_gate = layer.gate_shared;
  job.shared_up = layer.up_shared;
  job.shared_down = layer.down_shared;
  job.x = {b.high, nullptr, shape_.width};
  job.ids = b.experts;
  job.weights = b.expert_weights;
  job.out = b.sublayer;
  job.out_stride = shape_.width;
  job.tokens = chunk.tokens;
  job.experts = shape_.experts;
  job.experts_per_token = shape_.experts_used;
  job.scratch = b.expert_scratch;
  if (chunk.views.expert_inputs != nullptr) job.sums = chunk.views.expert_inputs->of_layer(index);
  check(half_experts(job, stream_), "half_experts");
}

const float* Prefill::logits(size_t first, size_t count) {
  const auto rows = static_cast<uint32_t>(count);
  const ChunkBuffers b = buffers_->from(shape_, static_cast<uint32_t>(first));
  const PrefillStreams streams = b.mixing(rows, shape_.width);
  check(prefill_leave_and_mix(streams, nullptr, &weights_.hc_head, stream_), "prefill_leave_and_mix");
  check(prefill_enter(streams, weights_.output_norm, {nullptr, nullptr, b.sublayer}, stream_),
        "prefill_enter");
  check(quantize({b.sublayer, b.codes, b.scales, rows, shape_.width, shape_.width}, stream_), "quantize");
  GemvJobs jobs;
  jobs.job[jobs.count++] = {
      weights_.output, {b.sublayer, b.codes, b.scales, shape_.width}, b.logits, shape_.vocabulary, 0, 0};
  check(gemv(jobs, static_cast<int>(rows), stream_), "output");
  return b.logits;
}

}  // namespace ds4::cuda
