// For the fuzzers of request bodies: what must hold of every request that is accepted, and of every refusal.
#pragma once

#include <cmath>
#include <cstdlib>
#include <string>

#include "server/api/error_body.hpp"
#include "server/api/json_fields.hpp"
#include "text/utf8.hpp"

namespace ds4::server::api {

inline ServerInfo fuzz_server() {
  ServerInfo info;
  info.model_id = "deepseek-v4-flash";
  info.context_tokens = 4096;
  info.infill = true;
  return info;
}

inline void require(bool holds) {
  if (!holds) std::abort();
}

/// Both error bodies are JSON in UTF-8, whatever the client's names were.
inline void check_refusal(const RequestError& error) {
  require(error.status == 400 && !error.message.empty() && !error.code.empty());
  for (const std::string& body : {openai_error(error), anthropic_error(error)}) {
    FieldErrors errors;
    require(parse_body(body, errors).has_value());
  }
}

inline void require_json_object(const std::string& text) {
  require(text::json_object_members(text).has_value());
}

inline void check_accepted(const GenerationRequest& request) {
  require(request.choices >= 1 && request.choices <= 16 && request.top_logprobs <= 20);
  require(request.sampling.temperature >= 0 && request.sampling.temperature <= 100);
  require(request.sampling.top_p >= 0 && request.sampling.top_p <= 1 && request.sampling.top_k <= 1024);
  for (const std::string& stop : request.stop) require(!stop.empty());
  for (const ChatMessage& message : request.messages) {
    require(text::is_utf8(message.content) && text::is_utf8(message.reasoning));
    for (const ToolCall& call : message.tool_calls) require(!call.name.empty() && !call.arguments.empty());
  }
  for (const Tool& tool : request.tools) {
    require(!tool.name.empty());
    require_json_object(tool.schema);
    if (!tool.parameters.empty()) require_json_object(tool.parameters);
  }
  if (request.format.kind == ResponseFormat::Kind::json_schema) require_json_object(request.format.schema);
  if (request.tool_choice == ToolChoice::required) require(!request.tools.empty());
  if (request.tool_choice == ToolChoice::named) require(!request.tool_choice_name.empty());
}

}  // namespace ds4::server::api
