// For tests: writes a small checkpoint folder in the official layout, with FP8 and FP4 tensors, and remembers
// the value of every element.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tensor_map.hpp"

namespace ds4::quantize {

class CheckpointFixture {
 public:
  struct Entry {
    std::string type;
    std::vector<uint64_t> shape;
    std::string bytes;
  };

  model::ModelShape shape;
  std::map<std::string, Entry> tensors;              // to be changed before write()
  std::map<std::string, std::vector<float>> values;  // by checkpoint name
  std::string config;
  std::string tokenizer;
  std::string tokenizer_config = "{}";

  /// `width` is that of the model, of its experts, and the query rank: a multiple of 128.
  explicit CheckpointFixture(uint32_t width = 128) {
    shape.layers = 3;
    shape.ratios = {0, 4, 128};
    shape.width = shape.expert_width = shape.q_rank = width;
    shape.vocabulary = 300;
    shape.heads = shape.output_groups = 2;
    shape.output_rank = 64;
    shape.experts = 2;
    shape.experts_used = 2;
    shape.hash_layers = 1;
    shape.index_heads = 4;
    shape.index_top_k = 8;
    shape.max_context = 1048576;
    shape.routed_scale = 2.0f;
    model::ModelWeights weights;
    model::MtpWeights mtp;
    for (const auto& slot : list_model_tensors(shape, weights)) add(slot);
    for (const auto& slot : list_mtp_tensors(shape, mtp)) add(slot);
    config = default_config();
    for (const char* key : {"hidden_size", "q_lora_rank", "moe_intermediate_size"})
      replace(config, fmt::format("\"{}\": 128", key), fmt::format("\"{}\": {}", key, width));
    tokenizer = default_tokenizer();
  }

  /// Two shards without an index.
  void write(const std::string& folder) const {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/config.json") << config;
    std::ofstream(folder + "/tokenizer.json") << tokenizer;
    std::ofstream(folder + "/tokenizer_config.json") << tokenizer_config;
    std::map<std::string, Entry> first, second;
    for (const auto& item : tensors) (first.size() <= second.size() ? first : second).insert(item);
    write_shard(folder + "/model-00001-of-00002.safetensors", first);
    write_shard(folder + "/model-00002-of-00002.safetensors", second);
  }

  /// Replaces `from` in a text by `to`; the text must contain it.
  static void replace(std::string& text, std::string_view from, std::string_view to) {
    text.replace(text.find(from), from.size(), to);
  }

 private:
  uint32_t random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }

  void add(const model::TensorSlot& slot) {
    const std::string name = checkpoint_name(slot.name);
    std::vector<uint64_t> dims(slot.dims.rbegin(), slot.dims.rend());
    using model::TensorRole;
    switch (slot.role) {
      case TensorRole::table:
        return add_table(name, dims);
      case TensorRole::gate_up_expert:
      case TensorRole::down_expert:
        for (uint64_t e = 0; e < dims[0]; ++e) add_fp4(fmt::format(fmt::runtime(name), e), dims[1], dims[2]);
        return;
      case TensorRole::projection:
      case TensorRole::shared_expert:
        return add_fp8(name, dims[0], dims[1]);
      case TensorRole::vector:
      case TensorRole::mixer:
        return add_float(name, dims, name.ends_with("norm.weight") ? "BF16" : "F32");
      default:
        return add_float(name, dims, slot.name == "output.weight" ? "F16" : "BF16");
    }
  }

  void add_table(const std::string& name, const std::vector<uint64_t>& dims) {
    Entry entry{"I64", dims, {}};
    std::vector<float>& numbers = values[name];
    for (uint64_t i = 0; i < dims[0] * dims[1]; ++i) {
      const int64_t expert = (random() & 1) != 0 ? 1 : 0;
      numbers.push_back(static_cast<float>(expert));
      entry.bytes.append(reinterpret_cast<const char*>(&expert), sizeof expert);
    }
    tensors[name] = entry;
  }

  // Small integers over 8: exact in every source type.
  void add_float(const std::string& name, const std::vector<uint64_t>& dims, const std::string& type) {
    Entry entry{type, dims, {}};
    std::vector<float>& numbers = values[name];
    uint64_t count = 1;
    for (uint64_t dim : dims) count *= dim;
    const size_t size = type == "F32" ? 4 : 2;
    for (uint64_t i = 0; i < count; ++i) {
      const int numerator = static_cast<int>(random() % 15) - 7;
      const float value = static_cast<float>(numerator) / 8;
      numbers.push_back(value);
      uint32_t bits = std::bit_cast<uint32_t>(value);
      if (type == "BF16") {
        bits >>= 16;
      } else if (type == "F16") {
        // Rebias the exponent; the mantissa has at most three bits.
        bits = value == 0
                   ? 0
                   : (bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff);
      }
      entry.bytes.append(reinterpret_cast<const char*>(&bits), size);
    }
    tensors[name] = entry;
  }

  static std::string scale_name(const std::string& name) {
    return name.substr(0, name.rfind('.')) + ".scale";
  }

  void add_fp8(const std::string& name, uint64_t rows, uint64_t cols) {
    Entry scales{"F8_E8M0", {rows / 128, cols / 128}, {}};
    for (uint64_t i = 0; i < rows / 128 * (cols / 128); ++i)
      scales.bytes += static_cast<char>(120 + random() % 6);
    Entry entry{"F8_E4M3", {rows, cols}, {}};
    std::vector<float>& numbers = values[name];
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t c = 0; c < cols; ++c) {
        const uint32_t code = random() % 127 | (random() & 1) << 7;  // no NaN
        const int exponent = static_cast<int>(code >> 3 & 15);
        const int mantissa = static_cast<int>(code & 7);
        const double magnitude =
            exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
        const auto scale = static_cast<uint8_t>(scales.bytes[r / 128 * (cols / 128) + c / 128]);
        const double value = std::ldexp((code & 128) != 0 ? -magnitude : magnitude, scale - 127);
        numbers.push_back(static_cast<float>(value));
        entry.bytes += static_cast<char>(code);
      }
    }
    tensors[name] = entry;
    tensors[scale_name(name)] = scales;
  }

  void add_fp4(const std::string& name, uint64_t rows, uint64_t cols) {
    static constexpr double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    Entry scales{"F8_E8M0", {rows, cols / 32}, {}};
    for (uint64_t i = 0; i < rows * (cols / 32); ++i) scales.bytes += static_cast<char>(118 + random() % 6);
    Entry entry{"I8", {rows, cols / 2}, {}};
    std::vector<float>& numbers = values[name];
    for (uint64_t i = 0; i < rows * cols; ++i) {
      const uint32_t code = random() & 15;
      const auto scale = static_cast<uint8_t>(scales.bytes[i / 32]);
      const double value =
          std::ldexp((code & 8) != 0 ? -magnitudes[code & 7] : magnitudes[code & 7], scale - 127);
      numbers.push_back(static_cast<float>(value));
      if (i % 2 == 0)
        entry.bytes += static_cast<char>(code);
      else
        entry.bytes.back() = static_cast<char>(entry.bytes.back() | code << 4);
    }
    tensors[name] = entry;
    tensors[scale_name(name)] = scales;
  }

  static void write_shard(const std::string& path, const std::map<std::string, Entry>& entries) {
    std::string header, data;
    for (const auto& [name, entry] : entries) {
      header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            header.empty() ? "{" : ",", name, entry.type, fmt::join(entry.shape, ","),
                            data.size(), data.size() + entry.bytes.size());
      data += entry.bytes;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << header << data;
  }

  static std::string default_config() {
    return R"({"model_type": "deepseek_v4", "num_hidden_layers": 3, "hidden_size": 128, "vocab_size": 300,
"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 128,
"o_groups": 2, "o_lora_rank": 64, "sliding_window": 128, "index_n_heads": 4, "index_head_dim": 128, "index_topk": 8,
"n_routed_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "n_shared_experts": 1,
"num_hash_layers": 1, "routed_scaling_factor": 2.0, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
"norm_topk_prob": true, "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
"rms_norm_eps": 1e-06, "rope_theta": 10000, "compress_rope_theta": 160000, "tie_word_embeddings": false,
"rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
"beta_slow": 1}, "max_position_embeddings": 1048576, "compress_ratios": [0, 4, 128, 0],
"num_nextn_predict_layers": 1, "bos_token_id": 0, "eos_token_id": 1})";
  }

  static std::string default_tokenizer() {
    return R"({"added_tokens": [
{"id": 0, "content": "<｜begin▁of▁sentence｜>", "special": true},
{"id": 1, "content": "<｜end▁of▁sentence｜>", "special": true},
{"id": 5, "content": "<｜User｜>", "special": false}, {"id": 6, "content": "<｜Assistant｜>", "special": false},
{"id": 7, "content": "<think>", "special": false}, {"id": 8, "content": "</think>", "special": false},
{"id": 9, "content": "｜DSML｜", "special": false}],
"model": {"type": "BPE", "vocab": {"a": 2, "b": 3, "ab": 4}, "merges": ["a b", ["b", "a"]]}})";
  }

  uint64_t state_ = 1;
};

}  // namespace ds4::quantize
