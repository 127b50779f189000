#include "server/api/routes.hpp"

#include <string_view>

#include "server/api/error_body.hpp"
#include "server/api/models.hpp"
#include "server/api/openai_chat.hpp"
#include "server/api/openai_completions.hpp"
#include "server/api/openai_responses.hpp"
#include "server/api/service.hpp"

namespace ds4::server::api {
namespace {

using Exchange = std::shared_ptr<http::Exchange>;
/// An endpoint that generates: refuses, or hands a sink that holds the exchange to the generator.
using GeneratingHandler = void (*)(const http::Request&, Exchange, Generator&, const ApiOptions&);
/// An endpoint that answers at once.
using PlainHandler = http::Response (*)(const http::Request&, Generator&, const ApiOptions&);

struct Route {
  const char* method;
  const char* path;            // without /v1
  GeneratingHandler generate;  // or
  PlainHandler answer;
};

/// An endpoint that knows nothing of options.
template <http::Response (*answer)(const http::Request&, Generator&)>
http::Response plain(const http::Request& request, Generator& generator, const ApiOptions& /*options*/) {
  return answer(request, generator);
}
template <void (*handle)(const http::Request&, Exchange, Generator&)>
void generating(const http::Request& request, Exchange exchange, Generator& generator,
                const ApiOptions& /*options*/) {
  handle(request, std::move(exchange), generator);
}

http::Response health(const http::Request& /*request*/, Generator& /*generator*/) {
  return answer_health();
}

void messages(const http::Request& request, Exchange exchange, Generator& generator,
              const ApiOptions& options) {
  handle_messages(request, std::move(exchange), generator, options.messages);
}

void responses(const http::Request& request, Exchange exchange, Generator& generator,
               const ApiOptions& options) {
  handle_responses(request, std::move(exchange), generator, options.responses);
}

http::Response count_tokens(const http::Request& request, Generator& generator, const ApiOptions& options) {
  return answer_count_tokens(request, generator, options.messages);
}

constexpr Route kRoutes[] = {
    {"POST", "/chat/completions", generating<handle_chat_completions>, nullptr},
    {"POST", "/completions", generating<handle_completions>, nullptr},
    {"POST", "/messages", messages, nullptr},
    {"POST", "/messages/count_tokens", nullptr, count_tokens},
    {"POST", "/responses", responses, nullptr},
    {"GET", "/models", nullptr, plain<answer_models>},
    {"GET", "/health", nullptr, plain<health>},
    {"GET", "/props", nullptr, plain<answer_props>},
    {"POST", "/tokenize", nullptr, plain<answer_tokenize>},
    {"POST", "/detokenize", nullptr, plain<answer_detokenize>},
};
constexpr std::string_view kModelPrefix = "/models/";
constexpr std::string_view kResponsePrefix = "/responses/";
constexpr std::string_view kMetricsPath = "/metrics";

/// The path as the table has it.
std::string_view normalised(std::string_view path) {
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

http::Response error_response(const http::Request& request, int status, std::string_view message) {
  http::Response response;
  response.status = status;
  response.body = error_body_for_path(request.path, status, message);
  return response;
}

http::Response wrong_method(const http::Request& request, const std::string& allowed) {
  http::Response response = error_response(request, 405, "this endpoint takes " + allowed + " only");
  response.headers.emplace_back("Allow", allowed + ", OPTIONS");  // which the HTTP layer answers
  return response;
}

http::Response stored_response(const http::Request& request, std::string_view id, ResponseStore& store) {
  if (request.method == "GET") return answer_stored_response(id, store);
  if (request.method == "DELETE") return delete_stored_response(id, store);
  return wrong_method(request, "GET, HEAD, DELETE");
}

std::string allowed_methods(std::string_view method) {
  return method == "GET" ? "GET, HEAD" : std::string(method);
}

http::Response metrics_response(const std::function<std::string()>& metrics) {
  http::Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics();
  return response;
}

}  // namespace

Routes::Routes(Generator& generator, std::function<std::string()> metrics)
    : generator_(&generator), metrics_(std::move(metrics)) {}

Routes::Routes(Generator& generator, std::function<std::string()> metrics, ApiOptions options)
    : generator_(&generator), metrics_(std::move(metrics)), options_(std::move(options)) {}

void Routes::handle(const http::Request& request, std::shared_ptr<http::Exchange> exchange) const {
  const std::string_view path = normalised(request.path);
  for (const Route& route : kRoutes) {
    if (path != route.path) continue;
    if (request.method != route.method) {
      return exchange->respond(wrong_method(request, allowed_methods(route.method)));
    }
    if (route.answer != nullptr) return exchange->respond(route.answer(request, *generator_, options_));
    return route.generate(request, std::move(exchange), *generator_, options_);
  }
  if (path.starts_with(kResponsePrefix)) {
    return exchange->respond(
        stored_response(request, path.substr(kResponsePrefix.size()), *options_.responses));
  }
  const bool model = path.starts_with(kModelPrefix);
  if (model || (path == kMetricsPath && metrics_)) {
    if (request.method != "GET") return exchange->respond(wrong_method(request, allowed_methods("GET")));
    if (model) return exchange->respond(answer_model(path.substr(kModelPrefix.size()), generator_->info()));
    return exchange->respond(metrics_response(metrics_));
  }
  exchange->respond(error_response(request, 404, "unknown endpoint"));
}

std::optional<http::Response> Routes::answer_inline(const http::Request& request) {
  if (request.method != "GET" || normalised(request.path) != "/health") return std::nullopt;
  return answer_health();
}

}  // namespace ds4::server::api
