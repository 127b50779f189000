#include "model/tensor_list.hpp"

#include <fmt/format.h>

#include <utility>

namespace ds4::model {
namespace {

using Dims = std::vector<uint64_t>;

class SlotList {
 public:
  explicit SlotList(std::string prefix) : prefix_(std::move(prefix)) {}

  void add(const char* name, Dims dims, TensorRole role, Tensor& tensor) {
    slots_.push_back({prefix_ + name, std::move(dims), role, &tensor});
  }
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  std::vector<TensorSlot> take() { return std::move(slots_); }

 private:
  std::string prefix_;
  std::vector<TensorSlot> slots_;
};

void add_hyper_connection(SlotList& list, const std::string& name, const ModelShape& shape, bool head,
                          HyperConnectionWeights& weights) {
  const uint64_t width = uint64_t{streams} * shape.width;
  const uint64_t mix = head ? streams : mix_width;
  list.add((name + "_fn.weight").c_str(), {width, mix}, TensorRole::mixer, weights.fn);
  list.add((name + "_scale.weight").c_str(), {head ? 1u : 3u}, TensorRole::vector, weights.scale);
  list.add((name + "_base.weight").c_str(), {mix}, TensorRole::vector, weights.base);
}

void add_compressor(SlotList& list, const std::string& name, const ModelShape& shape, uint32_t ratio,
                    uint32_t dim, CompressorWeights& weights) {
  const uint64_t width = compressor_width(ratio, dim);
  list.add((name + "_ape.weight").c_str(), {width, ratio}, TensorRole::mixer, weights.ape);
  list.add((name + "_kv.weight").c_str(), {shape.width, width}, TensorRole::small_matrix, weights.kv);
  list.add((name + "_gate.weight").c_str(), {shape.width, width}, TensorRole::small_matrix, weights.gate);
  list.add((name + "_norm.weight").c_str(), {dim}, TensorRole::vector, weights.norm);
}

void add_attention(SlotList& list, const ModelShape& shape, LayerWeights& layer) {
  const uint64_t d = shape.width;
  add_hyper_connection(list, "hc_attn", shape, false, layer.hc_attn);
  list.add("attn_norm.weight", {d}, TensorRole::vector, layer.attn_norm);
  list.add("attn_q_a.weight", {d, shape.q_rank}, TensorRole::projection, layer.q_a);
  list.add("attn_q_a_norm.weight", {shape.q_rank}, TensorRole::vector, layer.q_a_norm);
  list.add("attn_q_b.weight", {shape.q_rank, shape.q_width()}, TensorRole::projection, layer.q_b);
  list.add("attn_kv.weight", {d, head_dim}, TensorRole::projection, layer.kv);
  list.add("attn_kv_a_norm.weight", {head_dim}, TensorRole::vector, layer.kv_norm);
  list.add("attn_sinks.weight", {shape.heads}, TensorRole::vector, layer.sinks);
  list.add("attn_output_a.weight", {shape.group_width(), shape.low_width()}, TensorRole::projection,
           layer.output_a);
  list.add("attn_output_b.weight", {shape.low_width(), d}, TensorRole::projection, layer.output_b);
  if (layer.ratio == 0) return;
  add_compressor(list, "attn_compressor", shape, layer.ratio, head_dim, layer.compressor);
  if (layer.ratio != csa_ratio) return;
  list.add("indexer.attn_q_b.weight", {shape.q_rank, uint64_t{shape.index_heads} * index_head_dim},
           TensorRole::small_matrix, layer.index_q_b);
  list.add("indexer.proj.weight", {d, shape.index_heads}, TensorRole::small_matrix, layer.index_proj);
  add_compressor(list, "indexer_compressor", shape, layer.ratio, index_head_dim, layer.index_compressor);
}

void add_experts(SlotList& list, const ModelShape& shape, bool hash_routed, LayerWeights& layer) {
  const uint64_t d = shape.width;
  const uint64_t f = shape.expert_width;
  const uint64_t e = shape.experts;
  add_hyper_connection(list, "hc_ffn", shape, false, layer.hc_ffn);
  list.add("ffn_norm.weight", {d}, TensorRole::vector, layer.ffn_norm);
  list.add("ffn_gate_inp.weight", {d, e}, TensorRole::small_matrix, layer.router);
  if (hash_routed)
    list.add("ffn_gate_tid2eid.weight", {shape.experts_used, shape.vocabulary}, TensorRole::table,
             layer.router_table);
  else
    list.add("exp_probs_b.bias", {e}, TensorRole::vector, layer.router_bias);
  list.add("ffn_gate_exps.weight", {d, f, e}, TensorRole::gate_up_expert, layer.gate_experts);
  list.add("ffn_up_exps.weight", {d, f, e}, TensorRole::gate_up_expert, layer.up_experts);
  list.add("ffn_down_exps.weight", {f, d, e}, TensorRole::down_expert, layer.down_experts);
  list.add("ffn_gate_shexp.weight", {d, f}, TensorRole::shared_expert, layer.gate_shared);
  list.add("ffn_up_shexp.weight", {d, f}, TensorRole::shared_expert, layer.up_shared);
  list.add("ffn_down_shexp.weight", {f, d}, TensorRole::shared_expert, layer.down_shared);
}

}  // namespace

std::vector<TensorSlot> list_model_tensors(const ModelShape& shape, ModelWeights& weights) {
  const uint64_t d = shape.width;
  SlotList list("");
  list.add("token_embd.weight", {d, shape.vocabulary}, TensorRole::embedding, weights.token_embedding);
  add_hyper_connection(list, "output_hc", shape, true, weights.hc_head);
  list.add("output_norm.weight", {d}, TensorRole::vector, weights.output_norm);
  list.add("output.weight", {d, shape.vocabulary}, TensorRole::output, weights.output);
  weights.layers.resize(shape.layers);
  for (uint32_t i = 0; i < shape.layers; ++i) {
    LayerWeights& layer = weights.layers[i];
    layer.ratio = shape.ratios[i];
    list.set_prefix(fmt::format("blk.{}.", i));
    add_attention(list, shape, layer);
    add_experts(list, shape, i < shape.hash_layers, layer);
  }
  return list.take();
}

std::vector<TensorSlot> list_mtp_tensors(const ModelShape& shape, MtpWeights& weights) {
  const uint64_t d = shape.width;
  SlotList list("mtp.0.");
  list.add("e_proj.weight", {d, d}, TensorRole::projection, weights.embedding_proj);
  list.add("h_proj.weight", {d, d}, TensorRole::projection, weights.hidden_proj);
  list.add("enorm.weight", {d}, TensorRole::vector, weights.embedding_norm);
  list.add("hnorm.weight", {d}, TensorRole::vector, weights.hidden_norm);
  list.add("norm.weight", {d}, TensorRole::vector, weights.norm);
  add_hyper_connection(list, "hc_head", shape, true, weights.hc_head);
  weights.layer.ratio = 0;
  add_attention(list, shape, weights.layer);
  add_experts(list, shape, false, weights.layer);
  return list.take();
}

}  // namespace ds4::model
