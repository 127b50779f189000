#include "model/shape.hpp"

#include <cmath>
#include <tuple>

#include "base/error.hpp"

namespace ds4::model {
namespace {

// Bounds that no sensible model exceeds; they keep every product of counts inside 64 bits.
constexpr uint32_t max_layers = 512;
constexpr uint32_t max_vocabulary = 1u << 20;
constexpr uint32_t max_experts = 4096;
constexpr uint32_t max_heads = 4096;
constexpr uint32_t max_width = 1u << 16;
constexpr uint32_t max_top_k = 1u << 20;
constexpr uint64_t max_context = (uint64_t{1} << 31) - 1;  // positions fit 31 bits

// Ratios after the first two layers alternate: even layers 4, odd layers 128.
std::vector<uint32_t> alternating_ratios(uint32_t layers, uint32_t first_two) {
  std::vector<uint32_t> ratios(layers);
  for (uint32_t i = 0; i < layers; ++i) ratios[i] = i < 2 ? first_two : i % 2 == 0 ? csa_ratio : hca_ratio;
  return ratios;
}

ModelShape flash_shape() {
  ModelShape shape;
  shape.variant = Variant::flash;
  shape.name = "DeepSeek V4 Flash";
  shape.layers = 43;
  shape.width = 4096;
  shape.vocabulary = 129280;
  shape.heads = 64;
  shape.q_rank = 1024;
  shape.output_groups = 8;
  shape.output_rank = 1024;
  shape.experts = 256;
  shape.experts_used = 6;
  shape.expert_width = 2048;
  shape.hash_layers = 3;
  shape.index_heads = 64;
  shape.index_top_k = 512;
  shape.max_context = 1048576;
  shape.routed_scale = 1.5f;
  shape.ratios = alternating_ratios(shape.layers, 0);
  return shape;
}

ModelShape pro_shape() {
  ModelShape shape = flash_shape();
  shape.variant = Variant::pro;
  shape.name = "DeepSeek V4 Pro";
  shape.layers = 61;
  shape.width = 7168;
  shape.heads = 128;
  shape.q_rank = 1536;
  shape.output_groups = 16;
  shape.experts = 384;
  shape.expert_width = 3072;
  shape.index_top_k = 1024;
  shape.routed_scale = 2.5f;
  shape.ratios = alternating_ratios(shape.layers, hca_ratio);
  return shape;
}

ModelShape nano_shape() {
  ModelShape shape = flash_shape();
  shape.variant = Variant::nano;
  shape.name = "DeepSeek V4 Nano";
  shape.layers = 6;
  shape.width = 256;
  shape.vocabulary = 4096;
  shape.heads = 4;
  shape.q_rank = 128;
  shape.output_groups = 2;
  shape.output_rank = 64;
  shape.experts = 8;
  shape.experts_used = 2;
  shape.expert_width = 256;
  shape.index_heads = 4;
  shape.index_top_k = 64;
  shape.ratios = alternating_ratios(shape.layers, 0);
  return shape;
}

auto counts(const ModelShape& s) {
  return std::tie(s.layers, s.width, s.vocabulary, s.heads, s.q_rank, s.output_groups, s.output_rank,
                  s.experts, s.experts_used, s.expert_width, s.hash_layers, s.index_heads, s.index_top_k,
                  s.routed_scale, s.ratios);
}

struct BoundedCount {
  const char* name;
  uint32_t value;
  uint32_t max;
  uint32_t multiple;  // rows of weight blocks hold 32 values, so row lengths are multiples of 32
};

}  // namespace

const char* variant_name(Variant variant) {
  switch (variant) {
    case Variant::flash:
      return "Flash";
    case Variant::pro:
      return "Pro";
    case Variant::nano:
      return "Nano";
    case Variant::other:
      break;
  }
  return "unknown variant";
}

ModelShape known_shape(Variant variant) {
  switch (variant) {
    case Variant::pro:
      return pro_shape();
    case Variant::nano:
      return nano_shape();
    default:
      return flash_shape();
  }
}

Variant detect_variant(const ModelShape& shape) {
  for (Variant variant : {Variant::flash, Variant::pro, Variant::nano}) {
    if (counts(shape) == counts(known_shape(variant))) return variant;
  }
  return Variant::other;
}

Result<void> check_shape(const ModelShape& shape) {
  const BoundedCount bounded[] = {
      {"block_count", shape.layers, max_layers, 1},
      {"embedding_length", shape.width, max_width, 32},
      {"vocab_size", shape.vocabulary, max_vocabulary, 1},
      {"attention.head_count", shape.heads, max_heads, 1},
      {"attention.q_lora_rank", shape.q_rank, max_width, 32},
      {"attention.output_group_count", shape.output_groups, max_heads, 1},
      {"attention.output_lora_rank", shape.output_rank, max_width, 1},
      {"expert_count", shape.experts, max_experts, 1},
      {"expert_used_count", shape.experts_used, max_experts, 1},
      {"expert_feed_forward_length", shape.expert_width, max_width, 32},
      {"attention.indexer.head_count", shape.index_heads, max_heads, 1},
      {"attention.indexer.top_k", shape.index_top_k, max_top_k, 1},
  };
  for (const BoundedCount& count : bounded) {
    if (count.value == 0 || count.value > count.max)
      return fail(ErrorCode::unsupported, "{} is {}, but must be between 1 and {}", count.name, count.value,
                  count.max);
    if (count.value % count.multiple != 0)
      return fail(ErrorCode::unsupported, "{} is {}, but must be a multiple of {}", count.name, count.value,
                  count.multiple);
  }
  if (shape.max_context > max_context)
    return fail(ErrorCode::unsupported, "context_length is {}, but must be at most {}", shape.max_context,
                max_context);
  if (shape.heads % shape.output_groups != 0)
    return fail(ErrorCode::unsupported,
                "attention.head_count {} is not a multiple of attention.output_group_count {}", shape.heads,
                shape.output_groups);
  if (uint64_t{shape.output_groups} * shape.output_rank % 32 != 0)
    return fail(ErrorCode::unsupported,
                "attention.output_group_count {} times attention.output_lora_rank {} is not a multiple of 32",
                shape.output_groups, shape.output_rank);
  if (shape.experts_used > shape.experts)
    return fail(ErrorCode::unsupported, "expert_used_count {} is more than expert_count {}",
                shape.experts_used, shape.experts);
  if (shape.hash_layers > shape.layers)
    return fail(ErrorCode::unsupported, "hash_layer_count {} is more than block_count {}", shape.hash_layers,
                shape.layers);
  if (!(shape.routed_scale > 0) || !std::isfinite(shape.routed_scale))
    return fail(ErrorCode::unsupported, "expert_weights_scale is {}, but must be positive",
                shape.routed_scale);
  if (shape.ratios.size() != shape.layers)
    return fail(ErrorCode::unsupported, "attention.compress_ratios has {} values for {} layers",
                shape.ratios.size(), shape.layers);
  for (uint32_t i = 0; i < shape.layers; ++i) {
    const uint32_t ratio = shape.ratios[i];
    if (ratio != 0 && ratio != csa_ratio && ratio != hca_ratio)
      return fail(ErrorCode::unsupported,
                  "attention.compress_ratios of layer {} is {}, but must be 0, 4 or 128", i, ratio);
  }
  return {};
}

}  // namespace ds4::model
