#include "backend/cpu/cpu_weights.hpp"

#include <cstring>

#include "format/number_formats.hpp"

namespace ds4::cpu {
namespace {

Matrix matrix(const model::Tensor& tensor) {
  return {tensor.type, tensor.data, tensor.dims[1] * tensor.dims[2], tensor.dims[0]};
}

Vector vector(const model::Tensor& tensor) {
  Vector values(tensor.elements());
  const size_t row = tensor.dims[0];
  const uint64_t row_bytes = format::row_bytes(tensor.type, row);
  for (size_t i = 0; i < values.size() / row; ++i) {
    format::decode_row(tensor.type, tensor.data + i * row_bytes, row, values.data() + i * row);
  }
  return values;
}

HyperConnectionMixer mixer(const model::HyperConnectionWeights& weights) {
  return {matrix(weights.fn), vector(weights.scale), vector(weights.base)};
}

Compressor compressor(const model::CompressorWeights& weights, uint32_t dim) {
  return {matrix(weights.kv), matrix(weights.gate), vector(weights.ape), vector(weights.norm), dim};
}

std::vector<int32_t> table(const model::Tensor& tensor) {
  std::vector<int32_t> values(tensor.elements());
  std::memcpy(values.data(), tensor.data, values.size() * sizeof(int32_t));
  return values;
}

Layer make_layer(const model::LayerWeights& weights) {
  Layer layer;
  layer.ratio = weights.ratio;
  layer.hc_attn = mixer(weights.hc_attn);
  layer.attn_norm = vector(weights.attn_norm);
  layer.q_a = matrix(weights.q_a);
  layer.q_a_norm = vector(weights.q_a_norm);
  layer.q_b = matrix(weights.q_b);
  layer.kv = matrix(weights.kv);
  layer.kv_norm = vector(weights.kv_norm);
  layer.sinks = vector(weights.sinks);
  layer.output_a = matrix(weights.output_a);
  layer.output_b = matrix(weights.output_b);
  if (layer.ratio != 0) layer.compressor = compressor(weights.compressor, model::head_dim);
  if (layer.ratio == model::csa_ratio) {
    layer.index_q_b = matrix(weights.index_q_b);
    layer.index_proj = matrix(weights.index_proj);
    layer.index_compressor = compressor(weights.index_compressor, model::index_head_dim);
  }
  layer.hc_ffn = mixer(weights.hc_ffn);
  layer.ffn_norm = vector(weights.ffn_norm);
  layer.router = matrix(weights.router);
  if (weights.router_table.data != nullptr) {
    layer.router_table = table(weights.router_table);
  } else {
    layer.router_bias = vector(weights.router_bias);
  }
  layer.gate_experts = matrix(weights.gate_experts);
  layer.up_experts = matrix(weights.up_experts);
  layer.down_experts = matrix(weights.down_experts);
  layer.gate_shared = matrix(weights.gate_shared);
  layer.up_shared = matrix(weights.up_shared);
  layer.down_shared = matrix(weights.down_shared);
  return layer;
}

}  // namespace

CpuWeights make_cpu_weights(const model::ModelWeights& weights, const model::MtpWeights* mtp) {
  CpuWeights result;
  result.embedding = matrix(weights.token_embedding);
  result.output = matrix(weights.output);
  result.output_norm = vector(weights.output_norm);
  result.hc_head = mixer(weights.hc_head);
  for (const model::LayerWeights& layer : weights.layers) result.layers.push_back(make_layer(layer));
  if (mtp != nullptr) {
    result.drafter = Drafter{vector(mtp->embedding_norm), vector(mtp->hidden_norm), vector(mtp->norm),
                             matrix(mtp->embedding_proj), matrix(mtp->hidden_proj), make_layer(mtp->layer),
                             mixer(mtp->hc_head)};
  }
  result.plain_frequencies = rope_frequencies(false);
  result.compressed_frequencies = rope_frequencies(true);
  return result;
}

}  // namespace ds4::cpu
