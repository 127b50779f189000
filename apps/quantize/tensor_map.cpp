#include "tensor_map.hpp"

#include <fmt/ranges.h>

#include <optional>

#include "base/error.hpp"
#include "format/fp8_e4m3.hpp"

namespace ds4::quantize {
namespace {

using format::SafetensorsCheckpoint;
using format::SafetensorsEntry;
using format::SafetensorsType;
using model::TensorRole;
using model::TensorSlot;

struct NamePair {
  std::string_view gguf;
  std::string_view checkpoint;
};

constexpr NamePair global_names[] = {
    {"token_embd.weight", "embed.weight"}, {"output_norm.weight", "norm.weight"},
    {"output.weight", "head.weight"},      {"output_hc_base.weight", "hc_head_base"},
    {"output_hc_fn.weight", "hc_head_fn"}, {"output_hc_scale.weight", "hc_head_scale"},
};

// Inside a layer: "blk.N." corresponds to "layers.N.", "mtp.0." to itself.
constexpr NamePair layer_names[] = {
    {"hc_attn_base.weight", "hc_attn_base"},
    {"hc_attn_fn.weight", "hc_attn_fn"},
    {"hc_attn_scale.weight", "hc_attn_scale"},
    {"hc_ffn_base.weight", "hc_ffn_base"},
    {"hc_ffn_fn.weight", "hc_ffn_fn"},
    {"hc_ffn_scale.weight", "hc_ffn_scale"},
    {"attn_norm.weight", "attn_norm.weight"},
    {"attn_sinks.weight", "attn.attn_sink"},
    {"attn_q_a.weight", "attn.wq_a.weight"},
    {"attn_q_a_norm.weight", "attn.q_norm.weight"},
    {"attn_q_b.weight", "attn.wq_b.weight"},
    {"attn_kv.weight", "attn.wkv.weight"},
    {"attn_kv_a_norm.weight", "attn.kv_norm.weight"},
    {"attn_output_a.weight", "attn.wo_a.weight"},
    {"attn_output_b.weight", "attn.wo_b.weight"},
    {"attn_compressor_ape.weight", "attn.compressor.ape"},
    {"attn_compressor_kv.weight", "attn.compressor.wkv.weight"},
    {"attn_compressor_gate.weight", "attn.compressor.wgate.weight"},
    {"attn_compressor_norm.weight", "attn.compressor.norm.weight"},
    {"indexer.attn_q_b.weight", "attn.indexer.wq_b.weight"},
    {"indexer.proj.weight", "attn.indexer.weights_proj.weight"},
    {"indexer_compressor_ape.weight", "attn.indexer.compressor.ape"},
    {"indexer_compressor_kv.weight", "attn.indexer.compressor.wkv.weight"},
    {"indexer_compressor_gate.weight", "attn.indexer.compressor.wgate.weight"},
    {"indexer_compressor_norm.weight", "attn.indexer.compressor.norm.weight"},
    {"ffn_norm.weight", "ffn_norm.weight"},
    {"ffn_gate_inp.weight", "ffn.gate.weight"},
    {"exp_probs_b.bias", "ffn.gate.bias"},
    {"ffn_gate_tid2eid.weight", "ffn.gate.tid2eid"},
    {"ffn_gate_exps.weight", "ffn.experts.{}.w1.weight"},
    {"ffn_up_exps.weight", "ffn.experts.{}.w3.weight"},
    {"ffn_down_exps.weight", "ffn.experts.{}.w2.weight"},
    {"ffn_gate_shexp.weight", "ffn.shared_experts.w1.weight"},
    {"ffn_up_shexp.weight", "ffn.shared_experts.w3.weight"},
    {"ffn_down_shexp.weight", "ffn.shared_experts.w2.weight"},
    {"e_proj.weight", "e_proj.weight"},
    {"h_proj.weight", "h_proj.weight"},
    {"enorm.weight", "enorm.weight"},
    {"hnorm.weight", "hnorm.weight"},
    {"norm.weight", "norm.weight"},
    {"hc_head_base.weight", "hc_head_base"},
    {"hc_head_fn.weight", "hc_head_fn"},
    {"hc_head_scale.weight", "hc_head_scale"},
};

const char* type_text(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::f64:
      return "F64";
    case SafetensorsType::f32:
      return "F32";
    case SafetensorsType::f16:
      return "F16";
    case SafetensorsType::bf16:
      return "BF16";
    case SafetensorsType::i64:
      return "I64";
    case SafetensorsType::i32:
      return "I32";
    case SafetensorsType::i16:
      return "I16";
    case SafetensorsType::i8:
      return "I8";
    case SafetensorsType::u8:
      return "U8";
    case SafetensorsType::boolean:
      return "BOOL";
    case SafetensorsType::f8_e4m3:
      return "F8_E4M3";
    case SafetensorsType::f8_e8m0:
      return "F8_E8M0";
  }
  return "an unknown type";
}

Result<const SafetensorsEntry*> require(const SafetensorsCheckpoint& checkpoint, const std::string& name) {
  const SafetensorsEntry* entry = checkpoint.find(name);
  if (!entry) return fail(ErrorCode::not_found, "the checkpoint has no tensor {}", name);
  return entry;
}

Result<void> expect_shape(const SafetensorsEntry& entry, const std::vector<uint64_t>& expected) {
  if (entry.shape == expected) return {};
  return fail(ErrorCode::format, "tensor {} has shape [{}], expected [{}]", entry.name,
              fmt::join(entry.shape, ", "), fmt::join(expected, ", "));
}

Error wrong_type(const SafetensorsEntry& entry, std::string_view expected) {
  return fail(ErrorCode::unsupported, "tensor {} has type {}, expected {}", entry.name, type_text(entry.type),
              expected);
}

Result<const SafetensorsEntry*> require_scale(const SafetensorsCheckpoint& checkpoint,
                                              const SafetensorsEntry& weight,
                                              const std::vector<uint64_t>& shape) {
  std::string name = weight.name;
  if (name.ends_with(".weight")) name.resize(name.size() - std::string_view(".weight").size());
  DS4_ASSIGN(const SafetensorsEntry* scale, require(checkpoint, name + ".scale"));
  if (scale->type != SafetensorsType::f8_e8m0) return wrong_type(*scale, "F8_E8M0");
  DS4_TRY(expect_shape(*scale, shape));
  return scale;
}

std::optional<format::TensorType> row_type(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::f32:
      return format::TensorType::f32;
    case SafetensorsType::f16:
      return format::TensorType::f16;
    case SafetensorsType::bf16:
      return format::TensorType::bf16;
    default:
      return std::nullopt;
  }
}

// `shape` is row-major, as in the checkpoint.
Result<Source> find_source(const SafetensorsCheckpoint& checkpoint, const std::string& name, TensorRole role,
                           const std::vector<uint64_t>& shape) {
  DS4_ASSIGN(const SafetensorsEntry* entry, require(checkpoint, name));
  Source source;
  source.name = entry->name;
  source.bytes = entry->bytes;
  if (role == TensorRole::table) {
    if (entry->type != SafetensorsType::i64 && entry->type != SafetensorsType::i32)
      return wrong_type(*entry, "I64 or I32");
    source.format = SourceFormat::integer;
    source.is_wide = entry->type == SafetensorsType::i64;
    DS4_TRY(expect_shape(*entry, shape));
    return source;
  }
  if (const auto type = row_type(entry->type)) {
    source.type = *type;
    DS4_TRY(expect_shape(*entry, shape));
    return source;
  }
  const bool is_matrix = shape.size() == 2;
  if (is_matrix && entry->type == SafetensorsType::f8_e4m3) {
    DS4_TRY(expect_shape(*entry, shape));
    constexpr uint64_t tile = format::kFp8Tile;
    if (shape[0] % tile != 0 || shape[1] % tile != 0)
      return fail(ErrorCode::unsupported, "FP8 tensor {} has shape [{}], which is not a multiple of {}", name,
                  fmt::join(shape, ", "), tile);
    source.format = SourceFormat::fp8;
    DS4_ASSIGN(const auto* scale, require_scale(checkpoint, *entry, {shape[0] / tile, shape[1] / tile}));
    source.scales = scale->bytes;
    return source;
  }
  if (is_matrix && entry->type == SafetensorsType::i8) {
    DS4_TRY(expect_shape(*entry, {shape[0], shape[1] / 2}));
    source.format = SourceFormat::fp4;
    DS4_ASSIGN(const auto* scale, require_scale(checkpoint, *entry, {shape[0], shape[1] / 32}));
    source.scales = scale->bytes;
    return source;
  }
  return wrong_type(*entry, is_matrix ? "F32, F16, BF16, F8_E4M3 or I8 (packed FP4)" : "F32, F16 or BF16");
}

std::string lookup(std::span<const NamePair> names, std::string_view gguf, std::string_view prefix) {
  for (const NamePair& pair : names) {
    if (pair.gguf == gguf) return std::string(prefix) + std::string(pair.checkpoint);
  }
  return {};
}

}  // namespace

std::string_view source_type_name(const Source& source) {
  switch (source.format) {
    case SourceFormat::fp8:
      return "FP8";
    case SourceFormat::fp4:
      return "FP4";
    case SourceFormat::integer:
      return source.is_wide ? "I64" : "I32";
    case SourceFormat::rows:
      break;
  }
  return format::type_name(source.type);
}

std::string checkpoint_name(std::string_view gguf_name) {
  if (gguf_name.starts_with("mtp.0.")) return lookup(layer_names, gguf_name.substr(6), "mtp.0.");
  if (!gguf_name.starts_with("blk.")) return lookup(global_names, gguf_name, "");
  const size_t dot = gguf_name.find('.', 4);
  if (dot == std::string_view::npos) return {};
  return lookup(layer_names, gguf_name.substr(dot + 1),
                fmt::format("layers.{}.", gguf_name.substr(4, dot - 4)));
}

Result<std::vector<MappedTensor>> map_tensors(const SafetensorsCheckpoint& checkpoint,
                                              std::span<const TensorSlot> slots) {
  std::vector<MappedTensor> mapped;
  mapped.reserve(slots.size());
  for (const TensorSlot& slot : slots) {
    MappedTensor tensor{slot.name, slot.dims, slot.role, {}};
    const std::string name = checkpoint_name(slot.name);
    if (name.empty())
      return fail(ErrorCode::internal, "no checkpoint name is known for tensor {}", slot.name);
    const size_t number = name.find("{}");
    std::vector<uint64_t> shape(slot.dims.rbegin(), slot.dims.rend());
    uint64_t experts = 1;
    if (number != std::string::npos) {
      experts = shape.front();
      shape.erase(shape.begin());
    }
    for (uint64_t e = 0; e < experts; ++e) {
      std::string expert_name = name;
      if (number != std::string::npos) expert_name.replace(number, 2, std::to_string(e));
      DS4_ASSIGN(const Source source, find_source(checkpoint, expert_name, slot.role, shape));
      tensor.sources.push_back(source);
    }
    mapped.push_back(std::move(tensor));
  }
  return mapped;
}

std::vector<MappedTensor> map_gguf_tensors(std::span<const TensorSlot> slots) {
  std::vector<MappedTensor> mapped;
  mapped.reserve(slots.size());
  for (const TensorSlot& slot : slots) {
    const format::GgufTensor& tensor = *slot.tensor;
    const std::span<const std::byte> bytes(tensor.data, tensor.size_bytes);
    const bool has_experts = slot.role == TensorRole::gate_up_expert || slot.role == TensorRole::down_expert;
    const uint64_t experts = has_experts ? slot.dims.back() : 1;
    MappedTensor out{slot.name, slot.dims, slot.role, {}};
    for (uint64_t e = 0; e < experts; ++e) {
      Source source;
      source.name = tensor.name;
      source.type = tensor.type;
      if (slot.role == TensorRole::table) source.format = SourceFormat::integer;
      source.bytes = bytes.subspan(e * (bytes.size() / experts), bytes.size() / experts);
      out.sources.push_back(source);
    }
    mapped.push_back(std::move(out));
  }
  return mapped;
}

}  // namespace ds4::quantize
