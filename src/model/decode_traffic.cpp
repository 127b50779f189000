#include "model/decode_traffic.hpp"

#include <algorithm>

namespace ds4::model {
namespace {

template <class... Tensors>
uint64_t bytes_of(const Tensors&... tensors) {
  return (tensors.size_bytes + ...);
}

uint64_t bytes_of_mixer(const HyperConnectionWeights& mixer) {
  return bytes_of(mixer.fn, mixer.scale, mixer.base);
}

uint64_t bytes_of_compressor(const CompressorWeights& compressor) {
  return bytes_of(compressor.ape, compressor.kv, compressor.gate, compressor.norm);
}

/// One of the rows of a matrix or table.
uint64_t bytes_of_row(const Tensor& table) {
  return table.dims[1] == 0 ? 0 : table.size_bytes / table.dims[1];
}

uint64_t bytes_of_layer(const ModelShape& shape, const LayerWeights& layer) {
  uint64_t bytes = bytes_of_mixer(layer.hc_attn) + bytes_of_mixer(layer.hc_ffn);
  bytes += bytes_of(layer.attn_norm, layer.q_a, layer.q_a_norm, layer.q_b, layer.kv, layer.kv_norm,
                    layer.sinks, layer.output_a, layer.output_b);
  bytes += bytes_of_compressor(layer.compressor) + bytes_of_compressor(layer.index_compressor);
  bytes += bytes_of(layer.ffn_norm, layer.router, layer.router_bias) + bytes_of_row(layer.router_table);
  const uint64_t experts = bytes_of(layer.gate_experts, layer.up_experts, layer.down_experts);
  bytes += experts / shape.experts * shape.experts_used;
  return bytes + bytes_of(layer.gate_shared, layer.up_shared, layer.down_shared);
}

}  // namespace

DecodeTraffic::DecodeTraffic(const ModelShape& shape, const ModelWeights& weights)
    : layers_(weights.layers.size()), index_top_k_(shape.index_top_k) {
  always_bytes_ = bytes_of_row(weights.token_embedding) + bytes_of_mixer(weights.hc_head) +
                  bytes_of(weights.output_norm, weights.output);
  for (const LayerWeights& layer : weights.layers) {
    always_bytes_ += bytes_of_layer(shape, layer);
    index_query_bytes_ += bytes_of(layer.index_q_b, layer.index_proj);
    csa_layers_ += layer.ratio == csa_ratio ? 1 : 0;
    hca_layers_ += layer.ratio == hca_ratio ? 1 : 0;
  }
}

uint64_t DecodeTraffic::weight_bytes(uint64_t position) const {
  return always_bytes_ + (chooses(position) ? index_query_bytes_ : 0);
}

uint64_t DecodeTraffic::state_bytes(uint64_t position) const {
  const uint64_t tokens = position + 1;
  const uint64_t csa_rows = tokens / csa_ratio, hca_rows = tokens / hca_ratio;
  const uint64_t attended = layers_ * std::min<uint64_t>(tokens, window) +
                            csa_layers_ * std::min(csa_rows, index_top_k_) + hca_layers_ * hca_rows;
  const uint64_t searched = chooses(position) ? csa_layers_ * csa_rows : 0;
  return attended * packed_attention_row_bytes + searched * packed_index_row_bytes;
}

}  // namespace ds4::model
