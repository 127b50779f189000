#include "metadata.hpp"

#include <utility>
#include <vector>

#include "copy_gguf.hpp"
#include "fingerprint.hpp"

namespace ds4::quantize {
namespace {

using format::GgufWriter;

/// Keys that are to be added.
using Wanted = std::function<bool(std::string_view)>;

void add_counts(const model::ModelShape& shape, const Wanted& wanted, GgufWriter& writer) {
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
  for (const auto& [key, value] : counts) {
    const std::string full = std::string("deepseek4.") + key;
    if (wanted(full)) writer.add_uint32(full, value);
  }
}

void add_shape(const model::ModelShape& shape, const Wanted& wanted, GgufWriter& writer) {
  add_counts(shape, wanted, writer);
  const std::pair<const char*, uint64_t> wide[] = {{"deepseek4.context_length", shape.max_context},
                                                   {"deepseek4.rope.scaling.original_context_length",
                                                    static_cast<uint64_t>(model::yarn_original_context)}};
  for (const auto& [key, value] : wide) {
    if (wanted(key)) writer.add_uint64(key, value);
  }
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
  for (const auto& [key, value] : floats) {
    const std::string full = std::string("deepseek4.") + key;
    if (wanted(full)) writer.add_float32(full, static_cast<float>(value));
  }
  if (wanted("deepseek4.expert_weights_norm")) writer.add_bool("deepseek4.expert_weights_norm", true);
  if (wanted("deepseek4.attention.compress_ratios"))
    writer.add_uint32_array("deepseek4.attention.compress_ratios", shape.ratios);
  if (wanted("deepseek4.swiglu_clamp_exp"))
    writer.add_float32_array("deepseek4.swiglu_clamp_exp",
                             std::vector<float>(shape.layers, model::swiglu_clamp));
}

}  // namespace

void add_shape_metadata(const model::ModelShape& shape, GgufWriter& writer) {
  add_shape(shape, [](std::string_view) { return true; }, writer);
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

void copy_metadata(const format::GgufFile& file, const model::ModelShape* shape, std::string_view name,
                   GgufWriter& writer) {
  constexpr std::string_view name_key = "general.name";
  copy_keys(
      file,
      [&](std::string_view key) {
        return key.starts_with("quantize.") || (key == name_key && !name.empty());
      },
      writer);
  if (!name.empty()) writer.add_string(name_key, name);
  if (shape) add_shape(*shape, [&](std::string_view key) { return file.find(key) == nullptr; }, writer);
}

void add_quantize_metadata(const Origin& origin, GgufWriter& writer) {
  if (!origin.recipe.empty()) writer.add_string("quantize.recipe", origin.recipe);
  if (!origin.source_fingerprint.empty())
    writer.add_string("quantize.source.fingerprint", origin.source_fingerprint);
  if (!origin.imatrix) return;
  const format::Imatrix& imatrix = *origin.imatrix;
  writer.add_string("quantize.imatrix.file", origin.imatrix_file);
  writer.add_string("quantize.imatrix.fingerprint", imatrix_fingerprint(imatrix));
  if (imatrix.dataset) writer.add_string("quantize.imatrix.dataset", *imatrix.dataset);
  writer.add_uint64("quantize.imatrix.entries_count", imatrix.entries.size());
  if (imatrix.chunks.value_or(0) > 0) writer.add_uint64("quantize.imatrix.chunks_count", *imatrix.chunks);
}

}  // namespace ds4::quantize
