// What an Engine owns; sessions share it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.hpp"
#include "ds4/engine.hpp"
#include "ds4/tokenizer.hpp"
#include "format/gguf.hpp"
#include "model/decode_traffic.hpp"

namespace ds4 {

struct EngineImpl {
  format::GgufFile file;                     // the weights' bytes
  std::optional<format::GgufFile> mtp_file;  // the drafter's, if they are apart
  Tokenizer tokenizer;
  std::unique_ptr<backend::Backend> backend;
  ModelInfo info;
  uint32_t prefill_chunk = 0;
  model::DecodeTraffic traffic;
  StateLayout state_layout;
  std::string steering_digest;  // digest_directions()
  bool exact_activations = false;
};

/// Makes another backend of the one that was opened.
using BackendWrapper =
    std::function<std::unique_ptr<backend::Backend>(std::unique_ptr<backend::Backend> opened)>;

/// For tests and measurements, which look at what an engine asks of its backend, or answer in its place.
struct EngineAccess {
  /// Engine::open() with the backend that `wrap` returns; an empty `wrap` changes nothing.
  static Result<Engine> open(const EngineOptions& options, const BackendWrapper& wrap);
};

}  // namespace ds4
