#include "checkpoint_config.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "json_file.hpp"

namespace ds4::quantize {
namespace {

namespace json = boost::json;

class ConfigReader {
 public:
  ConfigReader(const std::string& path, const json::object& config) : path_(path), config_(config) {}

  Result<CheckpointConfig> read() {
    DS4_TRY(check_structure());
    DS4_TRY(check_rope());
    DS4_TRY(read_counts());
    DS4_TRY(read_ratios());
    if (auto consistent = model::check_shape(result_.shape); !consistent)
      return fail(consistent.error().code, "{}: {}", path_, consistent.error().message);
    result_.shape.variant = model::detect_variant(result_.shape);
    result_.shape.name = result_.shape.variant == model::Variant::other
                             ? "DeepSeek V4"
                             : model::known_shape(result_.shape.variant).name;
    return std::move(result_);
  }

 private:
  Result<void> expect_number(const json::object& object, std::string_view key, double expected) const {
    DS4_ASSIGN(const double value, json_number(path_, object, key));
    if (std::abs(value - expected) <= 1e-6 * std::abs(expected)) return {};
    return fail(ErrorCode::unsupported, "{}: {} is {}, but must be {}", path_, key, value, expected);
  }

  Result<void> expect_string(std::string_view key, std::string_view expected) const {
    DS4_ASSIGN(const std::string_view value, json_string(path_, config_, key));
    if (value == expected) return {};
    return fail(ErrorCode::unsupported, "{}: {} is {}, but must be {}", path_, key, quote(value),
                quote(expected));
  }

  Result<void> expect_bool(std::string_view key, bool expected) const {
    DS4_ASSIGN(const bool value, json_bool(path_, config_, key));
    if (value == expected) return {};
    return fail(ErrorCode::unsupported, "{}: {} is {}, but must be {}", path_, key, value, expected);
  }

  Result<void> check_structure() const {
    struct Expected {
      const char* key;
      double value;
    };
    static constexpr Expected numbers[] = {
        {"head_dim", model::head_dim},
        {"qk_rope_head_dim", model::rope_dim},
        {"index_head_dim", model::index_head_dim},
        {"num_key_value_heads", 1},
        {"n_shared_experts", 1},
        {"sliding_window", model::window},
        {"hc_mult", model::streams},
        {"hc_sinkhorn_iters", model::sinkhorn_iterations},
        {"hc_eps", 1e-6},
        {"rms_norm_eps", 1e-6},
        {"swiglu_limit", model::swiglu_clamp},
        {"rope_theta", model::rope_base},
        {"compress_rope_theta", model::compressed_rope_base},
    };
    DS4_TRY(expect_string("model_type", "deepseek_v4"));
    for (const Expected& number : numbers) DS4_TRY(expect_number(config_, number.key, number.value));
    DS4_TRY(expect_string("scoring_func", "sqrtsoftplus"));
    DS4_TRY(expect_string("topk_method", "noaux_tc"));
    DS4_TRY(expect_bool("norm_topk_prob", true));
    DS4_TRY(expect_bool("tie_word_embeddings", false));
    return {};
  }

  Result<void> check_rope() const {
    DS4_ASSIGN(const json::value* scaling, json_member(path_, config_, "rope_scaling"));
    if (!scaling->is_object()) return fail(ErrorCode::format, "{}: rope_scaling must be an object", path_);
    const json::object& rope = scaling->get_object();
    DS4_ASSIGN(const std::string_view type,
               json_string(path_, rope, rope.contains("rope_type") ? "rope_type" : "type"));
    if (type != "yarn")
      return fail(ErrorCode::unsupported, "{}: the rope_scaling type is {}, but must be \"yarn\"", path_,
                  quote(type));
    DS4_TRY(expect_number(rope, "factor", model::yarn_factor));
    DS4_TRY(expect_number(rope, "original_max_position_embeddings", model::yarn_original_context));
    DS4_TRY(expect_number(rope, "beta_fast", model::yarn_beta_fast));
    DS4_TRY(expect_number(rope, "beta_slow", model::yarn_beta_slow));
    return {};
  }

  Result<void> read_counts() {
    model::ModelShape& shape = result_.shape;
    const std::pair<const char*, uint32_t*> counts[] = {
        {"num_hidden_layers", &shape.layers},
        {"hidden_size", &shape.width},
        {"vocab_size", &shape.vocabulary},
        {"num_attention_heads", &shape.heads},
        {"q_lora_rank", &shape.q_rank},
        {"o_groups", &shape.output_groups},
        {"o_lora_rank", &shape.output_rank},
        {"n_routed_experts", &shape.experts},
        {"num_experts_per_tok", &shape.experts_used},
        {"moe_intermediate_size", &shape.expert_width},
        {"num_hash_layers", &shape.hash_layers},
        {"index_n_heads", &shape.index_heads},
        {"index_topk", &shape.index_top_k},
        {"bos_token_id", &result_.bos_token},
        {"eos_token_id", &result_.eos_token},
    };
    for (const auto& [key, count] : counts) {
      DS4_ASSIGN(*count, json_uint32(path_, config_, key));
    }
    DS4_ASSIGN(shape.max_context, json_uint32(path_, config_, "max_position_embeddings"));
    if (shape.max_context < 2)
      return fail(ErrorCode::format, "{}: max_position_embeddings {} leaves no room for a text", path_,
                  shape.max_context);
    if (config_.contains("num_nextn_predict_layers")) {
      DS4_ASSIGN(result_.mtp_layers, json_uint32(path_, config_, "num_nextn_predict_layers"));
    }
    DS4_ASSIGN(const double scale, json_number(path_, config_, "routed_scaling_factor"));
    shape.routed_scale = static_cast<float>(scale);
    for (uint32_t token : {result_.bos_token, result_.eos_token}) {
      if (token >= shape.vocabulary)
        return fail(ErrorCode::format, "{}: token id {} is outside the vocabulary of {}", path_, token,
                    shape.vocabulary);
    }
    return {};
  }

  // The array may go on with the ratios of MTP layers, which are 0 by definition.
  Result<void> read_ratios() {
    model::ModelShape& shape = result_.shape;
    DS4_ASSIGN(const json::array* ratios, json_array(path_, config_, "compress_ratios"));
    if (ratios->size() < shape.layers)
      return fail(ErrorCode::format, "{}: compress_ratios has {} values for {} layers", path_, ratios->size(),
                  shape.layers);
    for (uint32_t i = 0; i < shape.layers; ++i) {
      const int64_t* ratio = (*ratios)[i].if_int64();
      if (!ratio || *ratio < 0 || *ratio > model::hca_ratio)
        return fail(ErrorCode::format, "{}: compress_ratios of layer {} must be 0, 4 or 128", path_, i);
      shape.ratios.push_back(static_cast<uint32_t>(*ratio));
    }
    return {};
  }

  const std::string& path_;
  const json::object& config_;
  CheckpointConfig result_;
};

}  // namespace

Result<CheckpointConfig> read_checkpoint_config(const std::string& folder) {
  DS4_ASSIGN(const JsonFile file, read_json_object(folder + "/config.json"));
  return ConfigReader(file.path, file.value.get_object()).read();
}

}  // namespace ds4::quantize
