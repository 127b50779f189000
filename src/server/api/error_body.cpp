#include "server/api/error_body.hpp"

#include <fmt/format.h>

#include "server/api/json_writer.hpp"

namespace ds4::server::api {
namespace {

const char* openai_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string message_of(const RequestError& error) {
  if (error.message.empty()) return "internal server error";
  if (error.code != "context_length_exceeded") return error.message;
  // Agents compact a conversation when they find these words; they read the numbers, too.
  return fmt::format("{} (prompt is too long: {} tokens > {} maximum)", error.message, error.prompt_tokens,
                     error.context);
}

void write_sizes(JsonWriter& json, const RequestError& error) {
  if (error.code != "context_length_exceeded") return;
  json.member("n_prompt_tokens", error.prompt_tokens).member("n_ctx", error.context);
}

http::Response response(const RequestError& error, std::string body) {
  http::Response response;
  response.status = error.status;
  response.body = std::move(body) + "\n";
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "2");
  return response;
}

}  // namespace

std::string openai_error(const RequestError& error) {
  JsonWriter json;
  json.begin_object().key("error").begin_object();
  json.member("message", message_of(error)).member("type", error.type);
  if (!error.param.empty()) json.member("param", error.param);
  if (!error.code.empty()) json.member("code", error.code);
  write_sizes(json, error);
  return json.end_object().end_object().take();
}

std::string anthropic_error(const RequestError& error) {
  JsonWriter json;
  json.begin_object().member("type", "error").key("error").begin_object();
  json.member("type", anthropic_type(error.status)).member("message", message_of(error));
  write_sizes(json, error);
  return json.end_object().end_object().take();
}

http::Response openai_error_response(const RequestError& error) {
  return response(error, openai_error(error));
}

http::Response anthropic_error_response(const RequestError& error) {
  return response(error, anthropic_error(error));
}

RequestError generation_error(const GenerationEvent& finished) {
  RequestError error = finished.error;
  if (error.status < 500) error.status = 500;
  if (error.type == RequestError().type) error.type = "server_error";
  if (error.message.empty()) error.message = "generation failed";
  return error;
}

std::string error_body_for_path(std::string_view path, int status, std::string_view message) {
  RequestError error;
  error.status = status;
  error.type = openai_type(status);
  error.message = message;
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  const bool anthropic = path == "/messages" || path.starts_with("/messages/");
  return (anthropic ? anthropic_error(error) : openai_error(error)) + "\n";
}

}  // namespace ds4::server::api
