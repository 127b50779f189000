#include "support/tiny_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "format/f16.hpp"
#include "format/gguf_writer.hpp"
#include "format/number_formats.hpp"
#include "model/tensor_list.hpp"

namespace ds4::testing {
namespace {

using format::GgufWriter;
using format::TensorType;
using model::ModelShape;
using model::TensorRole;
using model::TensorSlot;

constexpr size_t chunk_bytes = 1u << 20;

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((bits() >> 32) * bound >> 32); }

  // Sum of four uniform values: close to normal, variance 1, and cheap.
  float normal() {
    const uint64_t b = bits();
    const float sum = static_cast<float>(b & 0xffff) + static_cast<float>(b >> 16 & 0xffff) +
                      static_cast<float>(b >> 32 & 0xffff) + static_cast<float>(b >> 48);
    return (sum / 65536.0f - 2.0f) * 1.7320508f;
  }

  void fill(std::span<std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); i += 8) {
      const uint64_t b = bits();
      std::memcpy(bytes.data() + i, &b, std::min<size_t>(8, bytes.size() - i));
    }
  }

 private:
  uint64_t state_;
};

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

struct Distribution {
  float mean = 0;
  float deviation = 0;
};

// Chosen so that activations stay near one and every parameter matters.
Distribution distribution(std::string_view name, const std::vector<uint64_t>& dims,
                          const TinyModelOptions& options) {
  const float by_fan_in = 1.0f / std::sqrt(static_cast<float>(dims[0]));
  if (name.ends_with("_norm.weight") || name.ends_with("norm.weight")) return {1, 0.1f};
  if (name.ends_with("_scale.weight")) return {1, 0.1f};
  if (name.ends_with("_base.weight")) return {0, 0.1f};
  if (name.ends_with("_fn.weight")) return {0, 0.1f * by_fan_in};
  if (name.ends_with("_sinks.weight")) return {0, 0.5f};
  if (name.ends_with("_ape.weight")) return {0, 0.2f};
  if (name.ends_with("exp_probs_b.bias")) return {0, 0.05f};
  if (name.ends_with("token_embd.weight")) return {0, 1};
  const float gain = options.expert_gain;
  if (name.ends_with("attn_output_b.weight")) return {0, options.damping * by_fan_in};
  if (name.ends_with("ffn_down_exps.weight") || name.ends_with("ffn_down_shexp.weight"))
    return {0, options.damping / (gain * gain) * by_fan_in};
  if (name.find("ffn_gate_exps") != name.npos || name.find("ffn_up_exps") != name.npos ||
      name.find("ffn_gate_shexp") != name.npos || name.find("ffn_up_shexp") != name.npos)
    return {0, gain * by_fan_in};
  return {0, by_fan_in};
}

// Sets the scales of random blocks. The constants give a standard deviation of 0.02, `k` scales them.
void set_block_scales(TensorType type, std::span<std::byte> bytes, float k) {
  const size_t block_bytes = format::type_traits(type)->block_bytes;
  const auto put_f16 = [&](size_t block, size_t offset, float value) {
    const uint16_t half = format::f32_to_f16(value * k);
    std::memcpy(bytes.data() + block * block_bytes + offset, &half, sizeof half);
  };
  for (size_t block = 0; block < bytes.size() / block_bytes; ++block) {
    switch (type) {
      case TensorType::q4_k:
        put_f16(block, 0, 0.0001f);
        put_f16(block, 2, 0.0007f);
        break;
      case TensorType::q2_k:
        put_f16(block, 80, 0.0016f);
        put_f16(block, 82, 0.0024f);
        break;
      case TensorType::iq2_xxs:
        put_f16(block, 0, 0.0005f);
        break;
      case TensorType::mxfp4: {
        const float code_deviation = 2.93f;  // root mean square of the E2M1 values
        const int exponent = static_cast<int>(std::lround(std::log2(0.02f * k / code_deviation)));
        bytes[block * block_bytes] = static_cast<std::byte>(std::clamp(127 + exponent, 1, 254));
        break;
      }
      default:
        break;
    }
  }
}

bool is_encodable(TensorType type) {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16 ||
         type == TensorType::q8_0;
}

class ModelWriter {
 public:
  ModelWriter(const std::string& path, const TinyModelOptions& options) : options_(options), writer_(path) {}

  void add_metadata();
  void add_mtp_metadata();
  Result<void> write(const std::vector<TensorSlot>& slots);

 private:
  bool skipped(const std::string& name) const { return options_.omit.contains(name); }
  TensorType type_of(const TensorSlot& slot) const;
  std::vector<uint64_t> dims_of(const TensorSlot& slot) const;
  Result<void> write_tensor(const TensorSlot& slot);
  Result<void> write_table(const TensorSlot& slot, const std::vector<uint64_t>& dims);

  void add_shape_keys();
  void add_tokenizer();
  void put_uint(const std::string& key, uint32_t value);
  void put_float(const std::string& key, float value);
  void put_string(const std::string& key, const std::string& value);
  template <class Map, class Add>
  void put_rest(const Map& map, Add add);

  const TinyModelOptions& options_;
  GgufWriter writer_;
  std::set<std::string> written_keys_;
};

template <class Map, class Value>
Value replaced(const Map& map, const std::string& key, Value value) {
  const auto found = map.find(key);
  return found == map.end() ? value : found->second;
}

// A key that is to have another kind of value is written with the rest.
void ModelWriter::put_uint(const std::string& key, uint32_t value) {
  if (skipped(key) || options_.float_keys.contains(key) || options_.string_keys.contains(key)) return;
  written_keys_.insert(key);
  writer_.add_uint32(key, replaced(options_.uint_keys, key, value));
}

void ModelWriter::put_float(const std::string& key, float value) {
  if (skipped(key) || options_.uint_keys.contains(key) || options_.string_keys.contains(key)) return;
  written_keys_.insert(key);
  writer_.add_float32(key, replaced(options_.float_keys, key, value));
}

void ModelWriter::put_string(const std::string& key, const std::string& value) {
  if (skipped(key)) return;
  written_keys_.insert(key);
  writer_.add_string(key, replaced(options_.string_keys, key, value));
}

template <class Map, class Add>
void ModelWriter::put_rest(const Map& map, Add add) {
  for (const auto& [key, value] : map) {
    if (written_keys_.insert(key).second) add(key, value);
  }
}

void ModelWriter::add_shape_keys() {
  const ModelShape& s = options_.shape;
  const std::pair<const char*, uint32_t> counts[] = {
      {"block_count", s.layers},
      {"embedding_length", s.width},
      {"vocab_size", s.vocabulary},
      {"attention.head_count", s.heads},
      {"attention.head_count_kv", 1},
      {"attention.key_length", model::head_dim},
      {"attention.value_length", model::head_dim},
      {"rope.dimension_count", model::rope_dim},
      {"attention.q_lora_rank", s.q_rank},
      {"attention.output_lora_rank", s.output_rank},
      {"attention.output_group_count", s.output_groups},
      {"attention.sliding_window", model::window},
      {"attention.indexer.head_count", s.index_heads},
      {"attention.indexer.key_length", model::index_head_dim},
      {"attention.indexer.top_k", s.index_top_k},
      {"expert_count", s.experts},
      {"expert_used_count", s.experts_used},
      {"expert_feed_forward_length", s.expert_width},
      {"expert_shared_count", 1},
      {"hash_layer_count", s.hash_layers},
      {"hyper_connection.count", model::streams},
      {"hyper_connection.sinkhorn_iterations", model::sinkhorn_iterations},
      {"rope.scaling.original_context_length", 65536},
  };
  for (const auto& [key, value] : counts) put_uint(std::string("deepseek4.") + key, value);
  const std::pair<const char*, float> floats[] = {
      {"attention.layer_norm_rms_epsilon", 1e-6f},
      {"attention.compress_rope_freq_base", 160000},
      {"expert_weights_scale", s.routed_scale},
      {"hyper_connection.epsilon", 1e-6f},
      {"rope.freq_base", 10000},
      {"rope.scaling.factor", 16},
      {"rope.scaling.yarn_beta_fast", 32},
      {"rope.scaling.yarn_beta_slow", 1},
  };
  for (const auto& [key, value] : floats) put_float(std::string("deepseek4.") + key, value);
  const std::string context = "deepseek4.context_length";
  if (!skipped(context)) writer_.add_uint64(context, s.max_context);
  const std::string norm = "deepseek4.expert_weights_norm";
  if (!skipped(norm)) writer_.add_bool(norm, replaced(options_.bool_keys, norm, true));
  written_keys_.insert(norm);
  const std::string ratios = "deepseek4.attention.compress_ratios";
  if (!skipped(ratios))
    writer_.add_uint32_array(ratios, replaced(options_.uint_array_keys, ratios, s.ratios));
  written_keys_.insert(ratios);
  const std::string clamps = "deepseek4.swiglu_clamp_exp";
  if (!skipped(clamps))
    writer_.add_float32_array(clamps, replaced(options_.float_array_keys, clamps,
                                               std::vector<float>(s.layers, model::swiglu_clamp)));
  written_keys_.insert(clamps);
}

void append_utf8(uint32_t code_point, std::string& text) {
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else {
    text += static_cast<char>(0xc0 | code_point >> 6);
    text += static_cast<char>(0x80 | (code_point & 0x3f));
  }
}

// The character that stands for a byte in the GPT-2 alphabet: itself where printable, else 256 and up in
// order.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet(256);
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    append_utf8(printable ? byte : next++, alphabet[byte]);
  }
  return alphabet;
}

void ModelWriter::add_tokenizer() {
  std::vector<std::string> tokens = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"};
  std::vector<int32_t> types(3, 3);  // control
  const std::vector<std::string> alphabet = byte_alphabet();
  tokens.insert(tokens.end(), alphabet.begin(), alphabet.end());
  types.resize(tokens.size(), 1);  // normal
  for (const char* special : {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"})
    tokens.emplace_back(special);
  types.resize(tokens.size(), 4);  // user defined
  for (const std::string& text : options_.filler_texts) {
    std::string& token = tokens.emplace_back();
    for (const unsigned char byte : text) token += alphabet[byte];
  }
  tokens.insert(tokens.end(), options_.special_names.begin(), options_.special_names.end());
  for (uint32_t i = 0; tokens.size() < options_.shape.vocabulary; ++i)
    tokens.push_back(fmt::format("tok{}", i));
  types.resize(tokens.size(), 1);
  put_string("tokenizer.ggml.model", "gpt2");
  put_string("tokenizer.ggml.pre", "joyai-llm");
  if (!skipped("tokenizer.ggml.tokens")) writer_.add_string_array("tokenizer.ggml.tokens", tokens);
  if (!skipped("tokenizer.ggml.token_type")) writer_.add_int32_array("tokenizer.ggml.token_type", types);
  if (!skipped("tokenizer.ggml.merges"))
    writer_.add_string_array("tokenizer.ggml.merges", std::vector<std::string>{});
  put_uint("tokenizer.ggml.bos_token_id", 0);
  put_uint("tokenizer.ggml.eos_token_id", 1);
}

void ModelWriter::add_metadata() {
  put_string("general.architecture", "deepseek4");
  put_string("general.name", options_.shape.name);
  add_shape_keys();
  add_tokenizer();
  put_rest(options_.uint_keys, [&](const auto& key, uint32_t value) { writer_.add_uint32(key, value); });
  put_rest(options_.float_keys, [&](const auto& key, float value) { writer_.add_float32(key, value); });
  put_rest(options_.string_keys,
           [&](const auto& key, const std::string& value) { writer_.add_string(key, value); });
}

void ModelWriter::add_mtp_metadata() {
  put_string("general.architecture", "deepseek4_mtp_support");
  put_string("general.name", options_.shape.name + " MTP");
}

TensorType ModelWriter::type_of(const TensorSlot& slot) const {
  const auto found = options_.tensor_types.find(slot.name);
  if (found != options_.tensor_types.end()) return found->second;
  switch (slot.role) {
    case TensorRole::embedding:
      return options_.embedding;
    case TensorRole::output:
      return options_.output;
    case TensorRole::projection:
      return options_.projection;
    case TensorRole::shared_expert:
      return options_.shared_expert;
    case TensorRole::gate_up_expert:
      return options_.gate_up_expert;
    case TensorRole::down_expert:
      return options_.down_expert;
    case TensorRole::small_matrix:
      return options_.small_matrix;
    case TensorRole::mixer:
      return options_.mixer;
    case TensorRole::vector:
      return options_.vector;
    case TensorRole::table:
      break;
  }
  return TensorType::i32;
}

std::vector<uint64_t> ModelWriter::dims_of(const TensorSlot& slot) const {
  return replaced(options_.tensor_dims, slot.name, slot.dims);
}

Result<void> ModelWriter::write(const std::vector<TensorSlot>& slots) {
  for (const TensorSlot& slot : slots) {
    if (!skipped(slot.name))
      writer_.add_tensor(replaced(options_.rename, slot.name, slot.name), type_of(slot), dims_of(slot));
  }
  for (const TensorSlot& slot : slots) {
    if (!skipped(slot.name)) DS4_TRY(write_tensor(slot));
  }
  return writer_.finish();
}

// `experts_used` different experts for each token.
Result<void> ModelWriter::write_table(const TensorSlot& slot, const std::vector<uint64_t>& dims) {
  Random random(options_.seed ^ hash_name(slot.name));
  const uint32_t experts = options_.shape.experts;
  std::vector<int32_t> table;
  std::vector<int32_t> order(experts);
  for (uint32_t e = 0; e < experts; ++e) order[e] = static_cast<int32_t>(e);
  for (uint64_t token = 0; token < dims[1]; ++token) {
    for (uint64_t i = 0; i < dims[0]; ++i) {
      const auto k = static_cast<uint32_t>(i % experts);  // more than there are experts only in a wrong table
      std::swap(order[k], order[k + random.below(experts - k)]);
      table.push_back(order[k]);
    }
  }
  if (options_.bad_router_tables.contains(slot.name)) table.back() = static_cast<int32_t>(experts);
  return writer_.write_tensor(std::as_bytes(std::span(table)));
}

Result<void> ModelWriter::write_tensor(const TensorSlot& slot) {
  const TensorType type = type_of(slot);
  const std::vector<uint64_t> dims = dims_of(slot);
  if (slot.role == TensorRole::table && type == TensorType::i32) return write_table(slot, dims);
  const Distribution values = distribution(slot.name, dims, options_);
  Random random(options_.seed ^ hash_name(slot.name));
  const uint64_t bytes_per_row = format::row_bytes(type, dims[0]);
  uint64_t rows = 1;
  for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
  const uint64_t rows_per_chunk = std::clamp<uint64_t>(chunk_bytes / bytes_per_row, 1, rows);
  const auto edit = options_.edit_rows.find(slot.name);
  std::vector<float> row(dims[0]);
  std::vector<std::byte> bytes(rows_per_chunk * bytes_per_row);
  for (uint64_t first = 0; first < rows; first += rows_per_chunk) {
    const uint64_t count = std::min(rows_per_chunk, rows - first);
    const std::span<std::byte> chunk(bytes.data(), count * bytes_per_row);
    if (is_encodable(type)) {
      for (uint64_t i = 0; i < count; ++i) {
        for (float& value : row) value = values.mean + values.deviation * random.normal();
        if (edit != options_.edit_rows.end()) edit->second(first + i, row);
        format::encode_row(type, row.data(), dims[0], chunk.data() + i * bytes_per_row);
      }
    } else {
      random.fill(chunk);
      set_block_scales(type, chunk, values.deviation / 0.02f);
    }
    DS4_TRY(writer_.write_tensor(chunk));
  }
  return {};
}

}  // namespace

ModelShape tiny_shape() {
  ModelShape shape = model::known_shape(model::Variant::nano);
  shape.variant = model::Variant::other;
  shape.name = "tiny random model";
  shape.vocabulary = 512;
  return shape;
}

ModelShape flash_width_shape(uint32_t layers, uint32_t experts, uint32_t vocabulary) {
  ModelShape shape = model::known_shape(model::Variant::flash);
  shape.variant = model::Variant::other;
  shape.name = "random model of Flash width";
  shape.layers = layers;
  shape.experts = experts;
  shape.experts_used = std::min(shape.experts_used, experts);
  shape.hash_layers = std::min(shape.hash_layers, layers);
  shape.vocabulary = vocabulary;
  shape.ratios.resize(layers);
  return shape;
}

void TinyModelOptions::use_published_types(TensorType gate_up, TensorType down) {
  embedding = small_matrix = mixer = TensorType::f16;
  output = projection = shared_expert = TensorType::q8_0;
  gate_up_expert = gate_up;
  down_expert = down;
  vector = TensorType::f32;
}

Result<void> write_tiny_model(const std::string& path, const TinyModelOptions& options) {
  DS4_TRY(model::check_shape(options.shape));
  model::ModelWeights weights;
  model::MtpWeights mtp;
  std::vector<TensorSlot> slots = list_model_tensors(options.shape, weights);
  if (options.with_mtp) {
    for (TensorSlot& slot : list_mtp_tensors(options.shape, mtp)) slots.push_back(std::move(slot));
  }
  if (options.metadata_only) slots.clear();
  ModelWriter writer(path, options);
  writer.add_metadata();
  return writer.write(slots);
}

Result<void> write_tiny_mtp(const std::string& path, const TinyModelOptions& options) {
  DS4_TRY(model::check_shape(options.shape));
  model::MtpWeights mtp;
  ModelWriter writer(path, options);
  writer.add_mtp_metadata();
  return writer.write(list_mtp_tensors(options.shape, mtp));
}

}  // namespace ds4::testing
