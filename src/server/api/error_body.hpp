// Errors in the words of each API.
#pragma once

#include <string>
#include <string_view>

#include "server/generation.hpp"
#include "server/http/message.hpp"

namespace ds4::server::api {

/// {"error":{"message":...,"type":...[,"param"][,"code"][,"n_prompt_tokens","n_ctx"]}} without a line end.
std::string openai_error(const RequestError& error);
/// {"type":"error","error":{"type":...,"message":...[,"n_prompt_tokens","n_ctx"]}}; the type follows the
/// status.
std::string anthropic_error(const RequestError& error);

/// Complete answers; a line feed ends the body. 429 and 503 say when to try again.
http::Response openai_error_response(const RequestError& error);
http::Response anthropic_error_response(const RequestError& error);

/// Why an answer broke off: the server's fault, whatever defaults the event's error was left with.
RequestError generation_error(const GenerationEvent& finished);

/// The body of an error that is found before a request reaches its API, in the shape of the API that `path`
/// belongs to: for http::ServerOptions::error_body.
std::string error_body_for_path(std::string_view path, int status, std::string_view message);

}  // namespace ds4::server::api
