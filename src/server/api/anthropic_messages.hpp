// POST /v1/messages and /v1/messages/count_tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/json_fields.hpp"
#include "server/api/volatile_text.hpp"
#include "server/generation.hpp"
#include "server/generator.hpp"
#include "server/http/exchange.hpp"

namespace ds4::server::api {

struct MessagesOptions {
  VolatileTextOptions volatile_text;
};

struct MessagesRequest {
  GenerationRequest generation;
  bool stream = false;
  std::vector<std::string> ignored_tools;  // types of tools that only the original service can run
};

/// Reads the body. Check `errors` afterwards: what is returned with an error is not to be used.
MessagesRequest read_messages_request(const http::Request& request, const ServerInfo& info,
                                      const MessagesOptions& options, FieldErrors& errors);

/// `system` and `messages`. Tool results become messages of their own, in front of the text of the message
/// that holds them.
std::vector<ChatMessage> read_anthropic_messages(const Fields& body, const VolatileTextOptions& options);

struct MessagesReplyOptions {
  std::string id;     // "msg_...", also the signature of thinking
  std::string model;  // as the client called it
  bool stream = false;
  http::HeaderList headers;
};

/// Writes the events of one request into the exchange.
std::shared_ptr<EventSink> make_messages_reply(MessagesReplyOptions options,
                                               std::shared_ptr<http::Exchange> exchange);

void handle_messages(const http::Request& request, std::shared_ptr<http::Exchange> exchange,
                     Generator& generator, const MessagesOptions& options);

/// {"input_tokens":...}: what handle_messages() would report for the same body.
http::Response answer_count_tokens(const http::Request& request, const Generator& generator,
                                   const MessagesOptions& options);

}  // namespace ds4::server::api
