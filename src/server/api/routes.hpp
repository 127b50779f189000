// Which endpoint answers which method and path.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/generator.hpp"
#include "server/http/exchange.hpp"
#include "server/http/message.hpp"

namespace ds4::server::api {

/// An endpoint that generates: refuses, or hands a sink that holds the exchange to the generator.
using GeneratingHandler = void (*)(const http::Request&, std::shared_ptr<http::Exchange>, Generator&);
/// An endpoint that answers at once.
using PlainHandler = http::Response (*)(const http::Request&, Generator&);

/// Thread-safe. Every path is known with and without /v1 in front of it, and with a slash at its end.
class Routes {
 public:
  /// `metrics` gives the text of GET /metrics; without it there is no such path. `generator` must outlive
  /// this.
  explicit Routes(Generator& generator, std::function<std::string()> metrics = {});

  void handle(const http::Request& request, std::shared_ptr<http::Exchange> exchange) const;

  /// For http::ServerOptions::inline_handler: what needs no work (GET /health).
  static std::optional<http::Response> answer_inline(const http::Request& request);

 private:
  Generator* generator_;
  std::function<std::string()> metrics_;
};

}  // namespace ds4::server::api
