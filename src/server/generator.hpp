// What answers requests: the seam between words (api/) and time (the scheduler).
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ds4/tokenizer.hpp"
#include "server/generation.hpp"

namespace ds4::server {

/// Thread-safe.
class Generator {
 public:
  virtual ~Generator() = default;

  /// Takes the request, or tells the sink `failed` before this returns. Renders and tokenises on the calling
  /// thread; everything else happens later, on the scheduler's.
  virtual void submit(GenerationRequest request, std::shared_ptr<EventSink> sink) = 0;

  struct Count {
    size_t prompt_tokens = 0;
    std::optional<RequestError> error;
  };
  /// How many prompt tokens submit() would count. Touches no state.
  virtual Count count(const GenerationRequest& request) const = 0;

  virtual const ServerInfo& info() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
};

}  // namespace ds4::server
