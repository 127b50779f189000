// POST /v1/chat/completions.
#pragma once

#include <memory>
#include <optional>

#include "server/api/json_fields.hpp"
#include "server/api/openai_reply.hpp"
#include "server/generation.hpp"
#include "server/generator.hpp"
#include "server/http/exchange.hpp"

namespace ds4::server::api {

struct ChatRequest {
  GenerationRequest generation;
  bool stream = false;
  bool include_usage = false;
  bool hide_reasoning = false;
};

/// Reads the body. Check `errors` afterwards: what is returned with an error is not to be used.
ChatRequest read_chat_request(const http::Request& request, const ServerInfo& info, FieldErrors& errors);

/// `messages` of OpenAI's chat: an array of {role, content, ...}.
std::vector<ChatMessage> read_chat_messages(const Fields& body);

/// `tools`, `tool_choice`, `parallel_tool_calls`.
void read_chat_tools(const Fields& body, GenerationRequest& request);

/// `response_format`.
ResponseFormat read_response_format(const Fields& body);

/// Writes the events of one request into the exchange.
std::shared_ptr<EventSink> make_chat_reply(const OpenAiReplyOptions& options,
                                           std::shared_ptr<http::Exchange> exchange);

void handle_chat_completions(const http::Request& request, std::shared_ptr<http::Exchange> exchange,
                             Generator& generator);

}  // namespace ds4::server::api
