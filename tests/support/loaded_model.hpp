// A model file opened down to its backend, for tests that look below the engine.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "format/gguf.hpp"
#include "model/shape.hpp"
#include "model/weights.hpp"

namespace ds4::testing {

/// Throws with the library's message: a broken test setup, not a failing check.
template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}
inline void must(Result<void> result) {
  if (!result) throw std::runtime_error(result.error().message);
}

class LoadedModel {
 public:
  explicit LoadedModel(const std::string& path, const std::string& mtp_path = "",
                       const cpu::CpuOptions& options = {})
      : file(must(format::GgufFile::open(path))),
        shape(must(model::read_shape(file, nullptr))),
        weights(must(model::bind_weights(file, shape))) {
    if (!mtp_path.empty()) {
      mtp_file.emplace(must(format::GgufFile::open(mtp_path)));
      mtp.emplace(must(model::bind_mtp(*mtp_file, shape)));
    }
    backend = cpu::make_cpu_backend(shape, weights, mtp ? &*mtp : nullptr, options);
  }

  std::unique_ptr<backend::Sequence> sequence() const { return must(backend->create_sequence()); }

  /// Appends a chunk; logits of its last `rows` tokens.
  std::vector<float> prefill(backend::Sequence& state, std::span<const Token> tokens, size_t rows = 1) const {
    std::vector<float> logits(rows * shape.vocabulary);
    must(backend->prefill(state, tokens, rows, logits, {}));
    return logits;
  }
  std::vector<float> decode(backend::Sequence& state, Token token) const {
    std::vector<float> logits(shape.vocabulary);
    const backend::DecodeRow row{&state, token};
    must(backend->decode({&row, 1}, logits));
    return logits;
  }

  format::GgufFile file;
  std::optional<format::GgufFile> mtp_file;
  model::ModelShape shape;
  model::ModelWeights weights;
  std::optional<model::MtpWeights> mtp;
  std::unique_ptr<backend::Backend> backend;
};

}  // namespace ds4::testing
