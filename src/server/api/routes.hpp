// Which endpoint answers which method and path.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/api/anthropic_messages.hpp"
#include "server/api/response_store.hpp"
#include "server/generator.hpp"
#include "server/http/exchange.hpp"
#include "server/http/message.hpp"

namespace ds4::server::api {

struct ApiOptions {
  MessagesOptions messages;
  /// Of finished responses; never null.
  std::shared_ptr<ResponseStore> responses = std::make_shared<ResponseStore>();
};

/// Thread-safe. Every path is known with and without /v1 in front of it, and with a slash at its end.
class Routes {
 public:
  /// `metrics` gives the text of GET /metrics; without it there is no such path. `generator` must outlive
  /// this.
  explicit Routes(Generator& generator, std::function<std::string()> metrics = {});
  Routes(Generator& generator, std::function<std::string()> metrics, ApiOptions options);

  void handle(const http::Request& request, std::shared_ptr<http::Exchange> exchange) const;

  /// For http::ServerOptions::inline_handler: what needs no work (GET /health).
  static std::optional<http::Response> answer_inline(const http::Request& request);

 private:
  Generator* generator_;
  std::function<std::string()> metrics_;
  ApiOptions options_;
};

}  // namespace ds4::server::api
