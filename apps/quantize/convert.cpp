#include "convert.hpp"

#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "checkpoint_config.hpp"
#include "checkpoint_tokenizer.hpp"
#include "encode_tensor.hpp"
#include "format/gguf_writer.hpp"
#include "format/safetensors.hpp"
#include "tensor_map.hpp"

namespace ds4::quantize {
namespace {

using format::GgufWriter;
using format::SafetensorsCheckpoint;

namespace fs = std::filesystem;

/// True if `path` is one of the files a checkpoint is read from, by whatever name.
bool is_checkpoint_file(const std::string& path, const std::string& folder) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path extension = entry->path().extension();
    if (extension != ".json" && extension != ".safetensors") continue;
    std::error_code ignored;
    if (fs::equivalent(path, entry->path(), ignored)) return true;
  }
  return false;
}

/// Renaming puts the result in the place of whatever has its name.
Result<void> check_output(const std::string& path, const ConvertOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return {};
  if (!fs::is_regular_file(status))
    return fail(ErrorCode::invalid_argument, "{} is not a regular file and will not be replaced", path);
  if (!options.overwrite)
    return fail(ErrorCode::invalid_argument, "{} exists already; use --overwrite to replace it", path);
  if (is_checkpoint_file(path, options.checkpoint))
    return fail(ErrorCode::invalid_argument, "{} is a file of the checkpoint", path);
  return {};
}

Result<void> check_tables(const std::vector<MappedTensor>& tensors, uint32_t experts) {
  for (const MappedTensor& tensor : tensors) {
    if (tensor.role != model::TensorRole::table) continue;
    const format::SafetensorsEntry& entry = *tensor.sources[0].data;
    const bool wide = entry.type == format::SafetensorsType::i64;
    for (uint64_t i = 0; i < entry.elements(); ++i) {
      int64_t expert = 0;
      int32_t narrow = 0;
      if (wide) {
        std::memcpy(&expert, entry.bytes.data() + i * sizeof expert, sizeof expert);
      } else {
        std::memcpy(&narrow, entry.bytes.data() + i * sizeof narrow, sizeof narrow);
        expert = narrow;
      }
      if (expert < 0 || expert >= experts)
        return fail(ErrorCode::format, "tensor {} names expert {}, but there are {} experts", entry.name,
                    expert, experts);
    }
  }
  return {};
}

void add_counts(const model::ModelShape& shape, GgufWriter& writer) {
  const std::pair<const char*, uint32_t> counts[] = {
      {"block_count", shape.layers},
      {"embedding_length", shape.width},
      {"vocab_size", shape.vocabulary},
      {"attention.head_count", shape.heads},
      {"attention.head_count_kv", 1},
      {"attention.key_length", model::head_dim},
      {"attention.value_length", model::head_dim},
      {"rope.dimension_count", model::rope_dim},
      {"attention.q_lora_rank", shape.q_rank},
      {"attention.output_lora_rank", shape.output_rank},
      {"attention.output_group_count", shape.output_groups},
      {"attention.sliding_window", model::window},
      {"attention.indexer.head_count", shape.index_heads},
      {"attention.indexer.key_length", model::index_head_dim},
      {"attention.indexer.top_k", shape.index_top_k},
      {"expert_count", shape.experts},
      {"expert_used_count", shape.experts_used},
      {"expert_feed_forward_length", shape.expert_width},
      {"expert_shared_count", 1},
      {"expert_group_count", 0},
      {"expert_group_used_count", 0},
      {"hash_layer_count", shape.hash_layers},
      {"hyper_connection.count", model::streams},
      {"hyper_connection.sinkhorn_iterations", model::sinkhorn_iterations},
  };
  for (const auto& [key, value] : counts) writer.add_uint32(std::string("deepseek4.") + key, value);
}

void add_shape_metadata(const model::ModelShape& shape, GgufWriter& writer) {
  add_counts(shape, writer);
  writer.add_uint64("deepseek4.context_length", shape.max_context);
  writer.add_uint64("deepseek4.rope.scaling.original_context_length",
                    static_cast<uint64_t>(model::yarn_original_context));
  const std::pair<const char*, double> floats[] = {
      {"attention.layer_norm_rms_epsilon", model::norm_epsilon},
      {"attention.compress_rope_freq_base", model::compressed_rope_base},
      {"expert_weights_scale", shape.routed_scale},
      {"hyper_connection.epsilon", model::hc_epsilon},
      {"rope.freq_base", model::rope_base},
      {"rope.scaling.factor", model::yarn_factor},
      {"rope.scaling.yarn_beta_fast", model::yarn_beta_fast},
      {"rope.scaling.yarn_beta_slow", model::yarn_beta_slow},
  };
  for (const auto& [key, value] : floats)
    writer.add_float32(std::string("deepseek4.") + key, static_cast<float>(value));
  writer.add_bool("deepseek4.expert_weights_norm", true);
  writer.add_uint32_array("deepseek4.attention.compress_ratios", shape.ratios);
  writer.add_float32_array("deepseek4.swiglu_clamp_exp",
                           std::vector<float>(shape.layers, model::swiglu_clamp));
}

void add_tokenizer_metadata(const CheckpointConfig& config, const CheckpointTokenizer& tokenizer,
                            GgufWriter& writer) {
  writer.add_string("tokenizer.ggml.model", "gpt2");
  writer.add_string("tokenizer.ggml.pre", "joyai-llm");
  writer.add_string_array("tokenizer.ggml.tokens", tokenizer.tokens);
  writer.add_int32_array("tokenizer.ggml.token_type", tokenizer.types);
  writer.add_string_array("tokenizer.ggml.merges", tokenizer.merges);
  writer.add_uint32("tokenizer.ggml.bos_token_id", config.bos_token);
  writer.add_uint32("tokenizer.ggml.eos_token_id", config.eos_token);
  if (tokenizer.chat_template) writer.add_string("tokenizer.chat_template", *tokenizer.chat_template);
}

void add_general_metadata(std::string_view architecture, std::string_view name, GgufWriter& writer) {
  writer.add_string("general.architecture", architecture);
  writer.add_string("general.name", name);
}

class Conversion {
 public:
  explicit Conversion(const ConvertOptions& options)
      : options_(options), encoder_(options.checkpoint, options.cancelled) {}

  Result<ConvertSummary> run() {
    DS4_TRY(check_output(options_.output, options_));
    if (with_mtp()) DS4_TRY(check_output(options_.mtp_output, options_));
    DS4_ASSIGN(const CheckpointConfig config, read_checkpoint_config(options_.checkpoint));
    DS4_ASSIGN(const CheckpointTokenizer tokenizer,
               read_checkpoint_tokenizer(options_.checkpoint, config.shape.vocabulary));
    DS4_ASSIGN(const SafetensorsCheckpoint checkpoint, SafetensorsCheckpoint::open(options_.checkpoint));
    DS4_TRY(write(config, tokenizer, checkpoint));
    return std::move(summary_);
  }

 private:
  // Puts the folder in front of a message that names only a tensor.
  template <class T>
  Result<T> in_checkpoint(Result<T> result) const {
    if (result) return result;
    return fail(result.error().code, "{}: {}", options_.checkpoint, result.error().message);
  }
  bool with_mtp() const { return !options_.mtp_output.empty(); }

  Result<void> write(const CheckpointConfig& config, const CheckpointTokenizer& tokenizer,
                     const SafetensorsCheckpoint& checkpoint) {
    model::ModelWeights weights;
    model::MtpWeights mtp_weights;
    DS4_ASSIGN(const auto tensors,
               in_checkpoint(map_tensors(checkpoint, list_model_tensors(config.shape, weights))));
    std::vector<MappedTensor> mtp_tensors;
    if (with_mtp()) {
      DS4_ASSIGN(mtp_tensors,
                 in_checkpoint(map_tensors(checkpoint, list_mtp_tensors(config.shape, mtp_weights))));
    }
    DS4_TRY(in_checkpoint(check_tables(tensors, config.shape.experts)));
    summary_.variant = model::variant_name(config.shape.variant);
    summary_.tensors = tensors.size();
    summary_.mtp_tensors = mtp_tensors.size();
    summary_.mtp_left_out = !with_mtp() && config.mtp_layers > 0;

    const std::string name = options_.name.empty() ? config.shape.name : options_.name;
    GgufWriter writer(options_.output);
    add_general_metadata("deepseek4", name, writer);
    add_shape_metadata(config.shape, writer);
    add_tokenizer_metadata(config, tokenizer, writer);
    DS4_TRY(write_tensors(tensors, writer));
    if (with_mtp()) {
      GgufWriter mtp_writer(options_.mtp_output);
      add_general_metadata("deepseek4_mtp_support", name + " MTP", mtp_writer);
      DS4_TRY(write_tensors(mtp_tensors, mtp_writer));
      DS4_TRY(mtp_writer.finish());
    }
    return writer.finish();
  }

  Result<void> write_tensors(const std::vector<MappedTensor>& tensors, GgufWriter& writer) {
    for (const MappedTensor& tensor : tensors)
      writer.add_tensor(tensor.name, tensor_type_for(options_.recipe, tensor.role), tensor.dims);
    for (const MappedTensor& tensor : tensors) {
      const format::TensorType type = tensor_type_for(options_.recipe, tensor.role);
      ++done_;
      if (options_.progress)
        options_.progress(done_, summary_.tensors + summary_.mtp_tensors, tensor.name,
                          format::type_name(type));
      DS4_TRY(encoder_.write(tensor, type, writer));
    }
    return {};
  }

  const ConvertOptions& options_;
  TensorEncoder encoder_;
  ConvertSummary summary_;
  size_t done_ = 0;
};

}  // namespace

Result<ConvertSummary> convert_checkpoint(const ConvertOptions& options) {
  return Conversion(options).run();
}

}  // namespace ds4::quantize
