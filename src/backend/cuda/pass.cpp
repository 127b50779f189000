#include "backend/cuda/pass.hpp"

#include <algorithm>

#include "backend/cpu/rope.hpp"
#include "backend/cuda/attention/attention.hpp"
#include "backend/cuda/gemv/gemv.hpp"
#include "backend/cuda/gemv/quantize.hpp"
#include "backend/cuda/hc/hyper_connection.hpp"
#include "backend/cuda/indexer/indexer.hpp"
#include "backend/cuda/moe/experts.hpp"
#include "backend/cuda/moe/route.hpp"
#include "backend/cuda/prefill/embed.hpp"
#include "backend/cuda/state/update_caches.hpp"
#include "backend/cuda/steering/edit_output.hpp"

namespace ds4::cuda {
namespace {

/// F32 rows with their rounded form.
struct ActivationBuffer {
  DeviceBuffer<float> f32;
  DeviceBuffer<int8_t> codes;
  DeviceBuffer<float> scales;
  uint32_t width = 0;

  ActivationBuffer(size_t rows, size_t columns, const char* what)
      : f32(rows * columns, what),
        codes(rows * columns, what),
        scales(rows * columns / 32, what),
        width(static_cast<uint32_t>(columns)) {}

  DeviceActivations view() const { return {f32.data(), codes.data(), scales.data(), width}; }
  static uint64_t bytes(size_t rows, size_t columns) { return rows * columns * 5 + rows * columns / 8; }
};

size_t widest_compressor() {
  return model::compressor_width(model::csa_ratio, model::head_dim);
}

// Compressed rows of a layer at the end of the longest context.
uint32_t most_compressed(const model::ModelShape& shape, uint32_t ratio) {
  return ratio == 0 ? 0 : static_cast<uint32_t>(shape.max_context / ratio);
}

size_t score_stride(const model::ModelShape& shape) {
  return index_score_stride(most_compressed(shape, model::csa_ratio));
}

// The layers take turns with one buffer.
size_t attention_bytes(const model::ModelShape& shape) {
  size_t bytes = 0;
  for (const uint32_t ratio : {0u, model::csa_ratio, model::hca_ratio}) {
    bytes = std::max(bytes, attention_scratch_bytes(max_rows, shape.heads, ratio, shape.index_top_k,
                                                    most_compressed(shape, ratio)));
  }
  return bytes;
}

}  // namespace

struct Pass::Buffers {
  Buffers(const model::ModelShape& s, cudaStream_t stream)
      : streams(size_t{max_rows} * 4 * s.width, "streams"),
        partial(size_t{max_rows} * (s.width / mix_slice_columns) * mix_values, "mix values"),
        mix_weights(size_t{max_rows} * 20, "mix weights"),
        normed(max_rows, s.width, "sublayer input"),
        q_low(max_rows, s.q_rank, "query rank"),
        kv(size_t{max_rows} * model::head_dim, "KV rows"),
        values(size_t{max_rows} * widest_compressor(), "compressor values"),
        gates(size_t{max_rows} * widest_compressor(), "compressor gates"),
        index_values(size_t{max_rows} * 2 * model::index_head_dim, "index compressor values"),
        index_gates(size_t{max_rows} * 2 * model::index_head_dim, "index compressor gates"),
        index_weights(size_t{max_rows} * s.index_heads, "index head weights"),
        index_query(size_t{max_rows} * s.index_heads * model::index_head_dim, "index queries"),
        index_scores(size_t{max_rows} * score_stride(s), "index scores"),
        selected(size_t{max_rows} * s.index_top_k, "selected rows"),
        query(max_rows, s.q_width(), "queries"),
        attended(max_rows, s.q_width(), "attention output"),
        attention_scratch(attention_bytes(s), "attention partial sums"),
        low(max_rows, s.low_width(), "output low rank"),
        sublayer(size_t{max_rows} * s.width, "sublayer output"),
        router(size_t{max_rows} * s.experts, "router logits"),
        experts(size_t{max_rows} * s.experts_used, "selected experts"),
        expert_weights(size_t{max_rows} * s.experts_used, "expert weights"),
        mid(size_t{max_rows} * (s.experts_used + 1), s.expert_width, "expert activations"),
        logits(size_t{max_rows} * s.vocabulary, "logits"),
        rows(max_rows, "row descriptions"),
        frequencies(2 * cpu::rope_pairs, "rotation frequencies"),
        host_rows(max_rows, "row descriptions") {
    for (const bool compressed : {false, true}) {
      const auto table = cpu::rope_frequencies(compressed);
      check(cudaMemcpyAsync(frequencies.data() + (compressed ? cpu::rope_pairs : 0), table.data(),
                            sizeof(table), cudaMemcpyHostToDevice, stream),
            "rotation frequencies");
    }
    check(cudaStreamSynchronize(stream), "rotation frequencies");
  }

  StreamBuffers stream_buffers(int width) const {
    return {streams.data(),       partial.data(), mix_weights.data(), normed.f32.data(), normed.codes.data(),
            normed.scales.data(), width};
  }

  DeviceBuffer<float> streams, partial, mix_weights;
  ActivationBuffer normed, q_low;
  DeviceBuffer<float> kv, values, gates, index_values, index_gates, index_weights, index_query, index_scores;
  DeviceBuffer<uint32_t> selected;
  ActivationBuffer query;
  ActivationBuffer attended;
  DeviceBuffer<uint8_t> attention_scratch;
  ActivationBuffer low;
  DeviceBuffer<float> sublayer, router;
  DeviceBuffer<int32_t> experts;
  DeviceBuffer<float> expert_weights;
  ActivationBuffer mid;
  DeviceBuffer<float> logits;
  DeviceBuffer<RowInfo> rows;
  DeviceBuffer<float> frequencies;
  PinnedBuffer<RowInfo> host_rows;
};

uint64_t Pass::scratch_bytes(const model::ModelShape& s) {
  const uint64_t rows = max_rows;
  return sizeof(float) * rows *
             (5 * s.width + widest_compressor() * 2 + s.experts + score_stride(s) + s.vocabulary) +
         ActivationBuffer::bytes(rows, s.width + s.q_rank + 2 * s.q_width() + s.low_width()) +
         ActivationBuffer::bytes(rows * (s.experts_used + 1), s.expert_width) + attention_bytes(s) +
         (uint64_t{128} << 20);  // graphs, staging, page tables
}

Pass::Pass(const model::ModelShape& shape, const DeviceWeights& weights, cudaStream_t stream)
    : shape_(shape), weights_(weights), stream_(stream), buffers_(std::make_unique<Buffers>(shape, stream)) {}

Pass::~Pass() {
  for (const auto& graphs : graphs_) {
    for (cudaGraphExec_t graph : graphs) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
  }
}

void Pass::run(std::span<const RowInfo> rows) {
  Buffers& b = *buffers_;
  check(cudaStreamSynchronize(stream_), "the pass before");  // the pinned rows are read by its copy
  std::copy(rows.begin(), rows.end(), b.host_rows.data());
  rows_ = static_cast<int>(rows.size());
  search_ = std::any_of(rows.begin(), rows.end(), [&](const RowInfo& row) {
    return visible_rows(row.position, model::csa_ratio) > shape_.index_top_k;
  });
  check(cudaMemcpyAsync(b.rows.data(), b.host_rows.data(), rows.size() * sizeof(RowInfo),
                        cudaMemcpyHostToDevice, stream_),
        "row descriptions");
  steered_ = directions_ != nullptr && std::any_of(rows.begin(), rows.end(), [](const RowInfo& row) {
               return row.steering.attention != 0 || row.steering.feed_forward != 0;
             });
  cudaGraphExec_t& graph = graphs_[(search_ ? 1 : 0) + (steered_ ? 2 : 0)][rows.size()];
  if (graph == nullptr) {
    cudaGraph_t captured = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "graph capture");
    try {
      enqueue_layers(rows_);
    } catch (const CudaFailure&) {  // the stream must not go on capturing
      if (cudaStreamEndCapture(stream_, &captured) == cudaSuccess) cudaGraphDestroy(captured);
      (void)cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream_, &captured), "graph capture");
    const cudaError_t status = cudaGraphInstantiate(&graph, captured, 0);
    cudaGraphDestroy(captured);
    check(status, "graph instantiation");
  }
  check(cudaGraphLaunch(graph, stream_), "graph launch");
}

void Pass::enqueue_layers(int rows) {
  const StreamBuffers streams = buffers_->stream_buffers(static_cast<int>(shape_.width));
  check(embed_tokens(weights_.embedding, buffers_->rows.data(), static_cast<uint32_t>(rows),
                     buffers_->streams.data(), stream_),
        "embed_tokens");
  check(leave_and_mix(streams, nullptr, &weights_.layers.front().hc_attn, rows, stream_), "leave_and_mix");
  for (size_t l = 0; l < weights_.layers.size(); ++l) enqueue_layer(l, rows);
}

void Pass::enqueue_layer(size_t index, int rows) {
  const DeviceLayer& layer = weights_.layers[index];
  const StreamBuffers streams = buffers_->stream_buffers(static_cast<int>(shape_.width));
  check(enter(streams, layer.hc_attn, layer.attn_norm, rows, stream_), "enter");
  attention(layer, index, rows);
  edit_output(index, Component::attention, rows);
  check(leave_and_mix(streams, buffers_->sublayer.data(), &layer.hc_ffn, rows, stream_), "leave_and_mix");
  check(enter(streams, layer.hc_ffn, layer.ffn_norm, rows, stream_), "enter");
  experts(layer, rows);
  edit_output(index, Component::feed_forward, rows);
  const bool last = index + 1 == weights_.layers.size();
  const DeviceMixer& next = last ? weights_.hc_head : weights_.layers[index + 1].hc_attn;
  check(leave_and_mix(streams, buffers_->sublayer.data(), &next, rows, stream_), "leave_and_mix");
}

void Pass::attention(const DeviceLayer& layer, size_t index, int rows) {
  Buffers& b = *buffers_;
  const bool indexed = layer.ratio == model::csa_ratio;
  GemvJobs jobs;
  const auto project = [&](const DeviceMatrix& w, const DeviceActivations& x, float* out, uint32_t stride,
                           uint32_t rows_per_group = 0, uint32_t group_cols = 0) {
    jobs.job[jobs.count++] = {w, x, out, stride, rows_per_group, group_cols};
  };
  const auto launch = [&](const char* what) {
    check(gemv(jobs, rows, stream_), what);
    jobs = {};
  };

  const DeviceActivations x = b.normed.view();
  project(layer.q_a, x, b.q_low.f32.data(), shape_.q_rank);
  project(layer.kv, x, b.kv.data(), model::head_dim);
  if (layer.ratio != 0) {
    project(layer.compressor.kv, x, b.values.data(), layer.compressor.kv.rows);
    project(layer.compressor.gate, x, b.gates.data(), layer.compressor.gate.rows);
  }
  if (indexed) {
    project(layer.index_compressor.kv, x, b.index_values.data(), layer.index_compressor.kv.rows);
    project(layer.index_compressor.gate, x, b.index_gates.data(), layer.index_compressor.gate.rows);
    project(layer.index_proj, x, b.index_weights.data(), shape_.index_heads);
  }
  launch("first projections");

  CacheUpdate update;
  update.rows = b.rows.data();
  update.layer = static_cast<int>(index);
  update.ratio = layer.ratio;
  update.frequencies = b.frequencies.data();
  update.q_low = b.q_low.f32.data();
  update.q_codes = b.q_low.codes.data();
  update.q_scales = b.q_low.scales.data();
  update.q_norm = layer.q_a_norm;
  update.rank = static_cast<int>(shape_.q_rank);
  update.kv = b.kv.data();
  update.kv_norm = layer.kv_norm;
  update.compressor = {b.values.data(), b.gates.data(), layer.compressor.ape, layer.compressor.norm};
  update.index_compressor = {b.index_values.data(), b.index_gates.data(), layer.index_compressor.ape,
                             layer.index_compressor.norm};
  update.mix = MixFinish(b.stream_buffers(static_cast<int>(shape_.width)), layer.hc_attn);
  check(update_caches(update, rows, stream_), "update_caches");

  project(layer.q_b, b.q_low.view(), b.query.f32.data(), shape_.q_width());
  if (indexed && search_) {
    project(layer.index_q_b, b.q_low.view(), b.index_query.data(),
            shape_.index_heads * model::index_head_dim);
  }
  launch("query projections");

  attend_rows(layer, index, rows);

  project(layer.output_a, b.attended.view(), b.low.f32.data(), shape_.low_width(), shape_.output_rank,
          shape_.group_width());
  launch("output projection a");
  check(quantize({b.low.f32.data(), b.low.codes.data(), b.low.scales.data(), static_cast<uint32_t>(rows),
                  b.low.width, b.low.width},
                 stream_),
        "quantize");
  project(layer.output_b, b.low.view(), b.sublayer.data(), shape_.width);
  launch("output projection b");
}

void Pass::attend_rows(const DeviceLayer& layer, size_t index, int rows) {
  Buffers& b = *buffers_;
  const bool indexed = layer.ratio == model::csa_ratio;
  if (indexed && search_) {
    IndexerArguments search;
    search.rows = b.rows.data();
    search.row_count = static_cast<uint32_t>(rows);
    search.layer = static_cast<uint32_t>(index);
    search.heads = shape_.index_heads;
    search.top_k = shape_.index_top_k;
    search.max_compressed = most_compressed(shape_, layer.ratio);
    search.query = b.index_query.data();
    search.frequencies = b.frequencies.data() + cpu::rope_pairs;
    search.head_weights = b.index_weights.data();
    search.scores = b.index_scores.data();
    search.selected = b.selected.data();
    check(score_index_rows(search, stream_), "score_index_rows");
    check(select_rows(search, stream_), "select_rows");
  }

  AttentionArguments arguments;
  arguments.rows = b.rows.data();
  arguments.row_count = static_cast<uint32_t>(rows);
  arguments.heads = shape_.heads;
  arguments.layer = static_cast<uint32_t>(index);
  arguments.ratio = layer.ratio;
  arguments.top_k = shape_.index_top_k;
  arguments.max_compressed = most_compressed(shape_, layer.ratio);
  arguments.query = b.query.f32.data();
  arguments.sinks = layer.sinks;
  arguments.frequencies = b.frequencies.data() + (layer.ratio == 0 ? 0 : cpu::rope_pairs);
  arguments.selected = indexed ? b.selected.data() : nullptr;
  arguments.scratch = b.attention_scratch.data();
  arguments.out = b.attended.f32.data();
  arguments.codes = b.attended.codes.data();
  arguments.scales = b.attended.scales.data();
  check(attend(arguments, stream_), "attend");
}

void Pass::experts(const DeviceLayer& layer, int rows) {
  Buffers& b = *buffers_;
  GemvJobs jobs;
  jobs.job[jobs.count++] = {layer.router, b.normed.view(), b.router.data(), shape_.experts, 0, 0};
  check(gemv(jobs, rows, stream_), "router");
  RouteJob routing;
  routing.logits = b.router.data();
  routing.rows = b.rows.data();
  routing.bias = layer.router_bias;
  routing.table = layer.router_table;
  routing.experts = static_cast<int>(shape_.experts);
  routing.used = static_cast<int>(shape_.experts_used);
  routing.scale = shape_.routed_scale;
  routing.selected = b.experts.data();
  routing.weights = b.expert_weights.data();
  check(route(routing, rows, stream_), "route");

  const auto tokens = static_cast<uint32_t>(rows);
  ExpertsGateUp gate_up;
  gate_up.gate = layer.gate_experts;
  gate_up.up = layer.up_experts;
  gate_up.shared_gate = layer.gate_shared;
  gate_up.shared_up = layer.up_shared;
  gate_up.x = b.normed.view();
  gate_up.ids = b.experts.data();
  gate_up.weights = b.expert_weights.data();
  gate_up.mid = b.mid.f32.data();
  gate_up.tokens = tokens;
  gate_up.experts_per_token = shape_.experts_used;
  gate_up.features = shape_.expert_width;
  check(experts_gate_up(gate_up, stream_), "experts_gate_up");
  check(quantize({b.mid.f32.data(), b.mid.codes.data(), b.mid.scales.data(),
                  tokens * (shape_.experts_used + 1), b.mid.width, b.mid.width},
                 stream_),
        "quantize");
  ExpertsDown down;
  down.down = layer.down_experts;
  down.shared_down = layer.down_shared;
  down.mid = b.mid.view();
  down.ids = b.experts.data();
  down.out = b.sublayer.data();
  down.out_stride = shape_.width;
  down.tokens = tokens;
  down.experts_per_token = shape_.experts_used;
  down.outputs = shape_.width;
  down.mix = MixFinish(b.stream_buffers(static_cast<int>(shape_.width)), layer.hc_ffn);
  check(experts_down(down, stream_), "experts_down");
}

void Pass::edit_output(size_t index, Component component, int rows) {
  if (!steered_) return;
  const OutputEdit edit{buffers_->sublayer.data(), directions_ + index * shape_.width, buffers_->rows.data(),
                        component, shape_.width};
  check(cuda::edit_output(edit, rows, stream_), "edit_output");
}

const float* Pass::logits(size_t first, size_t count) {
  Buffers& b = *buffers_;
  const StreamBuffers streams = b.stream_buffers(static_cast<int>(shape_.width));
  check(enter(streams, weights_.hc_head, weights_.output_norm, rows_, stream_), "enter");
  DeviceActivations x = b.normed.view();
  x.f32 += first * x.stride;
  x.codes += first * x.stride;
  x.scales += first * x.stride / 32;
  GemvJobs jobs;
  jobs.job[jobs.count++] = {weights_.output, x, b.logits.data(), shape_.vocabulary, 0, 0};
  check(gemv(jobs, static_cast<int>(count), stream_), "output");
  return b.logits.data();
}

}  // namespace ds4::cuda
