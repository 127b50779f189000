// read_shape: from the metadata keys of a file to a checked ModelShape.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "model/shape.hpp"
#include "model/tensor_names.hpp"

namespace ds4::model {
namespace {

using format::GgufFile;
using format::GgufTensor;

constexpr std::string_view key_prefix = "deepseek4.";

class ShapeReader {
 public:
  explicit ShapeReader(const GgufFile& file) : file_(file) {}

  Result<ModelShape> read(std::string* notice);

 private:
  static std::string full_key(std::string_view key) { return std::string(key_prefix) + std::string(key); }
  bool has(std::string_view key) const { return file_.find(full_key(key)) != nullptr; }

  Result<uint32_t> count(std::string_view key) const;
  Result<void> expect_uint(std::string_view key, uint64_t expected) const;
  Result<void> expect_float(std::string_view key, double expected) const;
  Result<void> expect_absent_or_zero(std::string_view key) const;
  template <class Check>
  Result<void> if_present(std::string_view key, Check check) const {
    if (has(key)) DS4_TRY(check());
    return {};
  }

  Result<void> check_structure() const;
  Result<void> check_clamp() const;
  Result<void> read_layers();
  Result<void> read_counts();
  Result<void> read_output_counts();
  Result<void> read_hash_layers();
  Result<void> read_ratios();
  Result<uint32_t> derived_ratio(uint32_t layer) const;
  Result<const GgufTensor*> block_tensor(uint32_t layer, std::string_view name) const;
  Result<const GgufTensor*> source_tensor(std::string_view key, std::string_view name) const;
  bool is_mtp_block(uint32_t layer) const;

  const GgufFile& file_;
  ModelShape shape_;
  uint32_t block_count_ = 0;
};

// The tolerance of the original system: absolute below one, relative above.
bool equal_floats(double got, double expected) {
  return std::abs(got - expected) <= 1e-6 * std::max(1.0, std::abs(expected));
}

Result<uint32_t> ShapeReader::count(std::string_view key) const {
  DS4_ASSIGN(const uint64_t value, file_.get_uint(full_key(key)));
  if (value > std::numeric_limits<uint32_t>::max())
    return fail(ErrorCode::format, "{}: {} is {}, which is far too large", file_.path(), full_key(key),
                value);
  return static_cast<uint32_t>(value);
}

Result<void> ShapeReader::expect_uint(std::string_view key, uint64_t expected) const {
  DS4_ASSIGN(const uint64_t value, file_.get_uint(full_key(key)));
  if (value == expected) return {};
  return fail(ErrorCode::unsupported, "{}: {} is {}, but must be {}", file_.path(), full_key(key), value,
              expected);
}

Result<void> ShapeReader::expect_float(std::string_view key, double expected) const {
  DS4_ASSIGN(const double value, file_.get_float(full_key(key)));
  if (equal_floats(value, expected)) return {};
  return fail(ErrorCode::unsupported, "{}: {} is {}, but must be {}", file_.path(), full_key(key), value,
              expected);
}

Result<void> ShapeReader::expect_absent_or_zero(std::string_view key) const {
  return if_present(key, [&] { return expect_uint(key, 0); });
}

// Structural values are part of the architecture: a file that has others is not a DeepSeek V4.
Result<void> ShapeReader::check_structure() const {
  DS4_TRY(expect_uint("attention.head_count_kv", 1));
  DS4_TRY(expect_uint("attention.key_length", head_dim));
  DS4_TRY(expect_uint("attention.value_length", head_dim));
  DS4_TRY(expect_uint("rope.dimension_count", rope_dim));
  DS4_TRY(expect_uint("attention.sliding_window", window));
  DS4_TRY(expect_uint("attention.indexer.key_length", index_head_dim));
  DS4_TRY(expect_float("attention.layer_norm_rms_epsilon", norm_epsilon));
  DS4_TRY(expect_uint("expert_shared_count", 1));
  DS4_TRY(expect_absent_or_zero("expert_group_count"));
  DS4_TRY(expect_absent_or_zero("expert_group_used_count"));
  DS4_ASSIGN(const bool normalised, file_.get_bool(full_key("expert_weights_norm")));
  if (!normalised)
    return fail(ErrorCode::unsupported, "{}: {} is false, but must be true", file_.path(),
                full_key("expert_weights_norm"));
  DS4_TRY(expect_float("rope.freq_base", rope_base));
  DS4_TRY(expect_float("rope.scaling.original_context_length", yarn_original_context));
  DS4_TRY(expect_float("rope.scaling.factor", yarn_factor));
  DS4_TRY(expect_float("rope.scaling.yarn_beta_fast", yarn_beta_fast));
  DS4_TRY(expect_float("rope.scaling.yarn_beta_slow", yarn_beta_slow));

  // The other dialect leaves out what is a constant of the architecture.
  for (auto [key, expected] : {std::pair{"hyper_connection.sinkhorn_iterations", sinkhorn_iterations},
                               std::pair{"hyper_connection.count", streams}})
    DS4_TRY(if_present(key, [&, k = key, e = expected] { return expect_uint(k, e); }));
  DS4_TRY(if_present("hyper_connection.epsilon",
                     [&] { return expect_float("hyper_connection.epsilon", hc_epsilon); }));
  DS4_TRY(if_present("attention.compress_rope_freq_base", [&] {
    return expect_float("attention.compress_rope_freq_base", compressed_rope_base);
  }));
  return {};
}

Result<void> ShapeReader::check_clamp() const {
  const std::string key = full_key("swiglu_clamp_exp");
  DS4_ASSIGN(const std::vector<double> clamps, file_.get_float_array(key));
  if (clamps.size() < shape_.layers)
    return fail(ErrorCode::format, "{}: {} has {} values for {} layers", file_.path(), key, clamps.size(),
                shape_.layers);
  for (size_t i = 0; i < shape_.layers; ++i) {
    if (!equal_floats(clamps[i], swiglu_clamp))
      return fail(ErrorCode::unsupported, "{}: {} of layer {} is {}, but must be {}", file_.path(), key, i,
                  clamps[i], swiglu_clamp);
  }
  return {};
}

Result<const GgufTensor*> ShapeReader::block_tensor(uint32_t layer, std::string_view name) const {
  return find_tensor(file_, fmt::format("blk.{}.{}", layer, name));
}

// A drafter stored as a further block carries at least one of these.
bool ShapeReader::is_mtp_block(uint32_t layer) const {
  for (std::string_view name : {"eh_proj", "enorm", "hnorm"}) {
    if (file_.find_tensor(fmt::format("blk.{}.nextn.{}.weight", layer, name))) return true;
  }
  return false;
}

// Files differ on whether block_count includes MTP layers, so the tensors decide.
Result<void> ShapeReader::read_layers() {
  DS4_ASSIGN(block_count_, count("block_count"));
  if (block_count_ > 512)
    return fail(ErrorCode::unsupported, "{}: {} is {}, but must be between 1 and 512", file_.path(),
                full_key("block_count"), block_count_);
  uint32_t declared_mtp = 0;
  if (has("nextn_predict_layers")) {
    DS4_ASSIGN(declared_mtp, count("nextn_predict_layers"));
  }
  shape_.layers = block_count_;
  while (shape_.layers > 0 && is_mtp_block(shape_.layers - 1)) --shape_.layers;
  if (shape_.layers != block_count_ || declared_mtp >= block_count_) return {};
  // Declared MTP layers may also be counted without being stored.
  for (uint32_t i = block_count_ - declared_mtp; i < block_count_; ++i) {
    DS4_ASSIGN(const GgufTensor* norm, block_tensor(i, "attn_norm.weight"));
    if (norm) return {};
  }
  shape_.layers = block_count_ - declared_mtp;
  return {};
}

// The tensor from which a missing key can be derived.
Result<const GgufTensor*> ShapeReader::source_tensor(std::string_view key, std::string_view name) const {
  DS4_ASSIGN(const GgufTensor* tensor, block_tensor(0, name));
  if (tensor) return tensor;
  return fail(ErrorCode::not_found,
              "{}: neither the key {} nor the tensor blk.0.{} that implies it is present", file_.path(),
              full_key(key), name);
}

Result<void> ShapeReader::read_output_counts() {
  const uint64_t q_width = uint64_t{shape_.heads} * head_dim;
  if (has("attention.output_group_count")) {
    DS4_ASSIGN(shape_.output_groups, count("attention.output_group_count"));
  } else {
    DS4_ASSIGN(const GgufTensor* output_a,
               source_tensor("attention.output_group_count", "attn_output_a.weight"));
    if (output_a->dims[0] == 0 || q_width % output_a->dims[0] != 0)
      return fail(ErrorCode::format,
                  "{}: tensor {} has rows of {} values, which do not divide {} heads of {}", file_.path(),
                  output_a->name, output_a->dims[0], shape_.heads, head_dim);
    shape_.output_groups = static_cast<uint32_t>(q_width / output_a->dims[0]);
  }
  if (has("attention.output_lora_rank")) {
    DS4_ASSIGN(shape_.output_rank, count("attention.output_lora_rank"));
    return {};
  }
  DS4_ASSIGN(const GgufTensor* output_b, source_tensor("attention.output_lora_rank", "attn_output_b.weight"));
  if (shape_.output_groups == 0 || output_b->dims[0] % shape_.output_groups != 0 ||
      output_b->dims[0] > std::numeric_limits<uint32_t>::max())
    return fail(ErrorCode::format,
                "{}: tensor {} has rows of {} values, which {} output groups do not divide", file_.path(),
                output_b->name, output_b->dims[0], shape_.output_groups);
  shape_.output_rank = static_cast<uint32_t>(output_b->dims[0] / shape_.output_groups);
  return {};
}

Result<void> ShapeReader::read_hash_layers() {
  if (has("hash_layer_count")) {
    DS4_ASSIGN(shape_.hash_layers, count("hash_layer_count"));
    return {};
  }
  bool leading = true;
  for (uint32_t i = 0; i < shape_.layers; ++i) {
    DS4_ASSIGN(const GgufTensor* table, block_tensor(i, "ffn_gate_tid2eid.weight"));
    if (table && !leading)
      return fail(ErrorCode::format,
                  "{}: without the key {}, tensor {} after a layer without one is ambiguous", file_.path(),
                  full_key("hash_layer_count"), table->name);
    leading = table != nullptr;
    if (leading) ++shape_.hash_layers;
  }
  return {};
}

Result<uint32_t> ShapeReader::derived_ratio(uint32_t layer) const {
  DS4_ASSIGN(const GgufTensor* ape, block_tensor(layer, "attn_compressor_ape.weight"));
  if (!ape) return 0u;
  const uint64_t ratio = ape->dims[1];
  if (ratio == csa_ratio || ratio == hca_ratio) return static_cast<uint32_t>(ratio);
  return fail(ErrorCode::format, "{}: tensor {} implies a compression ratio of {}, but it must be 4 or 128",
              file_.path(), ape->name, ratio);
}

Result<void> ShapeReader::read_ratios() {
  const std::string key = full_key("attention.compress_ratios");
  if (!has("attention.compress_ratios")) {
    for (uint32_t i = 0; i < shape_.layers; ++i) {
      DS4_ASSIGN(const uint32_t ratio, derived_ratio(i));
      shape_.ratios.push_back(ratio);
    }
    return {};
  }
  DS4_ASSIGN(const std::vector<uint64_t> ratios, file_.get_uint_array(key));
  if (ratios.size() < shape_.layers)
    return fail(ErrorCode::format, "{}: {} has {} values for {} layers", file_.path(), key, ratios.size(),
                shape_.layers);
  for (uint32_t i = 0; i < shape_.layers; ++i) {
    if (ratios[i] != 0 && ratios[i] != csa_ratio && ratios[i] != hca_ratio)
      return fail(ErrorCode::unsupported, "{}: {} of layer {} is {}, but must be 0, 4 or 128", file_.path(),
                  key, i, ratios[i]);
    shape_.ratios.push_back(static_cast<uint32_t>(ratios[i]));
  }
  return {};
}

Result<void> ShapeReader::read_counts() {
  DS4_ASSIGN(shape_.width, count("embedding_length"));
  DS4_ASSIGN(shape_.vocabulary, count("vocab_size"));
  DS4_ASSIGN(shape_.heads, count("attention.head_count"));
  DS4_ASSIGN(shape_.q_rank, count("attention.q_lora_rank"));
  DS4_ASSIGN(shape_.index_heads, count("attention.indexer.head_count"));
  DS4_ASSIGN(shape_.index_top_k, count("attention.indexer.top_k"));
  DS4_ASSIGN(shape_.experts, count("expert_count"));
  DS4_ASSIGN(shape_.experts_used, count("expert_used_count"));
  DS4_ASSIGN(shape_.expert_width, count("expert_feed_forward_length"));
  DS4_ASSIGN(const double scale, file_.get_float(full_key("expert_weights_scale")));
  shape_.routed_scale = static_cast<float>(scale);
  shape_.max_context = static_cast<uint64_t>(yarn_factor * yarn_original_context);
  if (has("context_length")) {
    DS4_ASSIGN(shape_.max_context, file_.get_uint(full_key("context_length")));
  }
  return {};
}

Result<ModelShape> ShapeReader::read(std::string* notice) {
  DS4_ASSIGN(const std::string_view architecture, file_.get_string("general.architecture"));
  if (architecture != "deepseek4")
    return fail(ErrorCode::unsupported, "{}: the architecture is {}, but must be \"deepseek4\"", file_.path(),
                quote(architecture));
  if (file_.find("general.name")) {
    DS4_ASSIGN(const std::string_view name, file_.get_string("general.name"));
    shape_.name = name;
  }
  DS4_TRY(read_layers());
  DS4_TRY(read_counts());
  DS4_TRY(check_structure());
  DS4_TRY(check_clamp());
  DS4_TRY(read_output_counts());
  DS4_TRY(read_hash_layers());
  DS4_TRY(read_ratios());
  if (auto consistent = check_shape(shape_); !consistent)
    return fail(consistent.error().code, "{}: {}", file_.path(), consistent.error().message);
  shape_.variant = detect_variant(shape_);
  if (notice) notice->clear();
  if (notice && shape_.variant == Variant::other)
    *notice = fmt::format(
        "{} is none of the known variants: {} layers, width {}, {} heads, {} experts; its counts "
        "are consistent, so it loads.",
        file_.path(), shape_.layers, shape_.width, shape_.heads, shape_.experts);
  return std::move(shape_);
}

}  // namespace

Result<ModelShape> read_shape(const GgufFile& file, std::string* notice) {
  return ShapeReader(file).read(notice);
}

}  // namespace ds4::model
