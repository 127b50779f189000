// THE ARCHITECTURE: every dimension of a DeepSeek V4 model, and every tensor with its dims.
//
// Structural constants are compile-time, counts come from the file. docs/model.md explains the formulas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "format/gguf.hpp"

namespace ds4::model {

// What makes a file a DeepSeek V4: the same in every variant.
inline constexpr uint32_t head_dim = 512;  // one row is both key and value, shared by all heads
inline constexpr uint32_t rope_dim = 64;   // the last 64 of a head rotate
inline constexpr uint32_t nope_dim = head_dim - rope_dim;
inline constexpr uint32_t index_head_dim = 128;
inline constexpr uint32_t streams = 4;                                  // hyper-connection streams
inline constexpr uint32_t mix_width = 2 * streams + streams * streams;  // 24
inline constexpr uint32_t sinkhorn_iterations = 20;
inline constexpr uint32_t window = 128;    // raw rows visible to a token, its own included
inline constexpr uint32_t fp8_block = 64;  // seven blocks over the first 448
inline constexpr uint32_t fp4_block = 32;
inline constexpr uint32_t csa_ratio = 4;    // tokens per compressed row, with indexer
inline constexpr uint32_t hca_ratio = 128;  // tokens per compressed row, without indexer
inline constexpr float swiglu_clamp = 10.0f;
inline constexpr float norm_epsilon = 1e-6f;
inline constexpr float hc_epsilon = 1e-6f;
inline constexpr double rope_base = 10000.0;
inline constexpr double compressed_rope_base = 160000.0;
inline constexpr double yarn_factor = 16.0;
inline constexpr double yarn_original_context = 65536.0;
inline constexpr double yarn_beta_fast = 32.0;
inline constexpr double yarn_beta_slow = 1.0;

enum class Variant { flash, pro, nano, other };

/// What differs between models. Names follow the GGUF keys of docs/formats.md.
struct ModelShape {
  Variant variant = Variant::other;
  std::string name;            // general.name
  uint32_t layers = 0;         // transformer layers, MTP not counted
  uint32_t width = 0;          // d
  uint32_t vocabulary = 0;     // V
  uint32_t heads = 0;          // H
  uint32_t q_rank = 0;         // low rank of the query projection
  uint32_t output_groups = 0;  // G
  uint32_t output_rank = 0;    // low rank per output group
  uint32_t experts = 0;        // E
  uint32_t experts_used = 0;   // K
  uint32_t expert_width = 0;   // F, routed and shared
  uint32_t hash_layers = 0;    // leading layers routed by token id
  uint32_t index_heads = 0;
  uint32_t index_top_k = 0;
  uint64_t max_context = 0;      // declared, tokens
  float routed_scale = 0;        // 1.5 Flash, 2.5 Pro
  std::vector<uint32_t> ratios;  // per layer: 0, 4 or 128

  uint32_t q_width() const { return heads * head_dim; }
  uint32_t group_width() const { return heads / output_groups * head_dim; }
  uint32_t low_width() const { return output_groups * output_rank; }
};

const char* variant_name(Variant variant);

/// The counts of a known variant, name and max_context included. Precondition: not Variant::other.
ModelShape known_shape(Variant variant);
/// The known variant whose counts, routed scale and ratios all equal those of `shape`, else other.
Variant detect_variant(const ModelShape& shape);

/// Checks that the counts fit together and are within bounds; the message names the GGUF key
/// and its value.
Result<void> check_shape(const ModelShape& shape);

/// Width of one projected compressor row (before pooling) and rows of its rolling state.
inline uint32_t compressor_width(uint32_t ratio, uint32_t dim) {
  return ratio == csa_ratio ? 2 * dim : dim;
}
inline uint32_t compressor_rows(uint32_t ratio) {
  return ratio == csa_ratio ? 2 * csa_ratio : ratio;
}

/// Reads and checks every key; fills what the other dialect leaves out from the tensors (docs/formats.md).
/// Errors name the key and both values. `notice` receives one sentence for an unknown but consistent variant.
Result<ModelShape> read_shape(const format::GgufFile& file, std::string* notice);

}  // namespace ds4::model
