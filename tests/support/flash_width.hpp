// Random models at the widths of Flash, and a record of everything a pass over one computes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "backend/cpu/forward.hpp"
#include "support/loaded_model.hpp"
#include "support/tiny_model.hpp"

namespace ds4::testing {

struct FlashWidthCounts {
  uint32_t layers = 0;
  uint32_t experts = 0, experts_used = 0;
  uint32_t index_top_k = 0;
  uint32_t vocabulary = 512;
};

/// Number formats of published files. Damped, so that rounding does not grow from layer to layer; expert
/// activations reach the clamp.
inline TinyModelOptions flash_width_options(const FlashWidthCounts& counts) {
  TinyModelOptions options;
  options.shape = flash_width_shape(counts.layers, counts.experts, counts.vocabulary);
  options.shape.experts_used = counts.experts_used;
  options.shape.index_top_k = counts.index_top_k;
  options.use_published_types(format::TensorType::iq2_xxs, format::TensorType::q2_k);
  options.damping = 0.1f;
  options.expert_gain = 5.0f;
  return options;
}

/// The same pseudo-random text for everybody: the upper bits of a linear congruential sequence.
inline std::vector<Token> flash_width_tokens(size_t count, uint32_t vocabulary) {
  std::vector<Token> tokens(count);
  uint32_t state = 12345;
  for (Token& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<Token>((state >> 8) % vocabulary);
  }
  return tokens;
}

/// Keeps what every token of a sequence computes, by layer. `start` is the position of the batch's first row.
class PassRecorder : public cpu::ForwardObserver {
 public:
  void on_streams(size_t layer, std::span<const float> values) override {
    streams[layer].insert(streams[layer].end(), values.begin(), values.end());
  }
  void on_experts(size_t layer, size_t, std::span<const uint32_t> chosen) override {
    experts[layer].insert(experts[layer].end(), chosen.begin(), chosen.end());
  }
  void on_index_rows(size_t layer, size_t row, std::span<const uint32_t> selected,
                     std::span<const float>) override {
    index_rows[layer][start + row].assign(selected.begin(), selected.end());
  }

  size_t start = 0;
  std::map<size_t, std::vector<float>> streams;                          // [T][4][d]
  std::map<size_t, std::vector<uint32_t>> experts;                       // [T][K], each token's ascending
  std::map<size_t, std::map<size_t, std::vector<uint32_t>>> index_rows;  // by position, ascending
};

/// Prefills `tokens` chunk by chunk; logits [T][V].
inline std::vector<float> record_pass(const LoadedModel& model, PassRecorder& recorder,
                                      std::span<const Token> tokens, size_t chunk_tokens) {
  const auto sequence = model.sequence();
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk_tokens) {
    const auto chunk = tokens.subspan(begin, std::min(chunk_tokens, tokens.size() - begin));
    recorder.start = begin;
    const auto rows = model.prefill(*sequence, chunk, chunk.size());
    logits.insert(logits.end(), rows.begin(), rows.end());
  }
  return logits;
}

}  // namespace ds4::testing
