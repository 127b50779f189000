// POST /v1/completions: text after a prompt, or between a prompt and a suffix.
#pragma once

#include <memory>

#include "server/api/json_fields.hpp"
#include "server/api/openai_reply.hpp"
#include "server/generation.hpp"
#include "server/generator.hpp"
#include "server/http/exchange.hpp"

namespace ds4::server::api {

struct CompletionRequest {
  GenerationRequest generation;
  bool stream = false;
  bool include_usage = false;
};

/// Reads the body. Check `errors` afterwards: what is returned with an error is not to be used.
CompletionRequest read_completion_request(const http::Request& request, const ServerInfo& info,
                                          FieldErrors& errors);

/// Writes the events of one request into the exchange.
std::shared_ptr<EventSink> make_completion_reply(const OpenAiReplyOptions& options,
                                                 std::shared_ptr<http::Exchange> exchange);

void handle_completions(const http::Request& request, std::shared_ptr<http::Exchange> exchange,
                        Generator& generator);

}  // namespace ds4::server::api
