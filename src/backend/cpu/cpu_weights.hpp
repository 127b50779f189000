// The model's tensors in the form the CPU backend uses: matrices in file layout, small vectors as F32.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "backend/cpu/compressor.hpp"
#include "backend/cpu/matmul.hpp"
#include "backend/cpu/rope.hpp"
#include "model/weights.hpp"

namespace ds4::cpu {

using Vector = std::vector<float>;

struct HyperConnectionMixer {
  Matrix fn;  // [24 or 4][4d]
  Vector scale, base;
};

struct Compressor {
  Matrix kv, gate;  // [width][d]
  Vector ape, norm;
  uint32_t dim = 0;
};

struct Layer {
  uint32_t ratio = 0;
  HyperConnectionMixer hc_attn, hc_ffn;
  Vector attn_norm, q_a_norm, kv_norm, sinks, ffn_norm;
  Matrix q_a, q_b, kv, output_a, output_b;
  Compressor compressor, index_compressor;
  Matrix index_q_b, index_proj;
  Matrix router;
  Vector router_bias;
  std::vector<int32_t> router_table;              // [V][K]; empty where the layer routes by score
  Matrix gate_experts, up_experts, down_experts;  // [E * F][d], [E * F][d], [E * d][F]
  Matrix gate_shared, up_shared, down_shared;
};

/// The MTP block.
struct Drafter {
  Vector embedding_norm, hidden_norm, norm;
  Matrix embedding_proj, hidden_proj;
  Layer layer;
  HyperConnectionMixer hc_head;
};

struct CpuWeights {
  Matrix embedding, output;  // [V][d]
  Vector output_norm;
  HyperConnectionMixer hc_head;
  std::vector<Layer> layers;
  std::optional<Drafter> drafter;
  std::array<float, rope_pairs> plain_frequencies, compressed_frequencies;

  const std::array<float, rope_pairs>& frequencies(uint32_t ratio) const {
    return ratio == 0 ? plain_frequencies : compressed_frequencies;
  }
};

/// Views into the mapped file; `mtp` may be null.
CpuWeights make_cpu_weights(const model::ModelWeights& weights, const model::MtpWeights* mtp);

}  // namespace ds4::cpu
