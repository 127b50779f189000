// The nano model on the GPU and on the CPU, and what tests compare of their logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.hpp"
#include "support/loaded_model.hpp"

namespace ds4::testing {

inline const std::string bundled = DS4_SOURCE_DIR "/models/nano/nano.gguf";

inline std::vector<Token> random_tokens(size_t count, uint64_t seed) {
  std::vector<Token> tokens(count);
  for (Token& token : tokens) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    token = static_cast<Token>((seed >> 33) % 4096);
  }
  return tokens;
}

/// Distance of a from b, relative to b.
inline double relative_l2(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

inline size_t best(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Difference between the two largest values.
inline float margin(std::span<const float> logits) {
  const size_t first = best(logits);
  float second = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i != first) second = std::max(second, logits[i]);
  }
  return logits[first] - second;
}

struct NanoPair {
  explicit NanoPair(const std::string& path)
      : cpu(path), gpu(must(cuda::make_cuda_backend(cpu.shape, cpu.weights, nullptr, {}))) {}

  std::unique_ptr<backend::Sequence> sequence() const { return must(gpu->create_sequence()); }
  std::vector<float> prefill(backend::Sequence& state, std::span<const Token> tokens, size_t rows = 1) const {
    std::vector<float> logits(rows * cpu.shape.vocabulary);
    must(gpu->prefill(state, tokens, rows, logits, {}));
    return logits;
  }
  std::vector<float> decode(backend::Sequence& state, Token token) const {
    std::vector<float> logits(cpu.shape.vocabulary);
    const backend::DecodeRow row{&state, token};
    must(gpu->decode({&row, 1}, logits));
    return logits;
  }

  LoadedModel cpu;
  std::unique_ptr<backend::Backend> gpu;
};

}  // namespace ds4::testing
