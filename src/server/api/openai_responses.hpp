// POST /v1/responses, and what is kept of finished ones.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/json_fields.hpp"
#include "server/api/response_store.hpp"
#include "server/generation.hpp"
#include "server/generator.hpp"
#include "server/http/exchange.hpp"

namespace ds4::server::api {

/// How a call goes back to the client.
struct ResponseTool {
  enum class Kind {
    function,     // function_call
    custom,       // custom_tool_call: free text, which the model writes as the parameter `input`
    tool_search,  // tool_search_call
    local_shell,  // local_shell_call
  } kind = Kind::function;
  std::string name;        // as the client calls it
  std::string name_space;  // that holds it; empty: none
};
/// By the name that the model knows.
using ResponseTools = std::map<std::string, ResponseTool, std::less<>>;

struct ResponsesRequest {
  GenerationRequest generation;
  ResponseTools tools;
  std::vector<std::string> ignored_tools;  // kinds that only the original service can run
  bool stream = false;
  bool store = true;
  bool summaries = false;  // reasoning is shown
  std::string previous_response_id;
  std::string instructions;
  std::string told_back;  // see ResponsesReplyOptions
};

/// Reads the body, and puts the conversation of `previous_response_id` in front. Check `errors` afterwards:
/// what is returned with an error is not to be used.
ResponsesRequest read_responses_request(const http::Request& request, const ServerInfo& info,
                                        ResponseStore& store, FieldErrors& errors);

/// `tools`: adds those that the model can call.
void read_response_tools(const std::vector<JsonValue>& tools, const std::string& path, FieldErrors& errors,
                         ResponsesRequest& request);
/// `tool_choice` and `parallel_tool_calls`, after all tools.
void read_response_tool_choice(const Fields& body, ResponsesRequest& request);

/// `input`: appends its items to the messages, and the tools that a search found to the tools. References are
/// to items of responses in the store.
void read_response_input(const Fields& body, ResponseStore& store, ResponsesRequest& request);

struct ResponsesReplyOptions {
  std::string id;  // "resp_..."
  int64_t created = 0;
  std::string model;  // as the client called it
  std::string previous_response_id;
  /// What the request asked for, told with every response since libraries expect it: members of a JSON
  /// object.
  std::string told_back;
  bool stream = false;
  bool summaries = false;
  ThinkMode think = ThinkMode::high;
  http::HeaderList headers;
  ResponseTools tools;
  std::string (*new_id)(std::string_view prefix);  // of items
  std::shared_ptr<ResponseStore> store;            // null: this response is not kept
  std::vector<ChatMessage> conversation;           // to be kept with it, without instructions
};

/// Writes the events of one request into the exchange.
std::shared_ptr<EventSink> make_responses_reply(ResponsesReplyOptions options,
                                                std::shared_ptr<http::Exchange> exchange);

void handle_responses(const http::Request& request, std::shared_ptr<http::Exchange> exchange,
                      Generator& generator, const std::shared_ptr<ResponseStore>& store);

/// GET and DELETE /v1/responses/{id}.
http::Response answer_stored_response(std::string_view id, ResponseStore& store);
http::Response delete_stored_response(std::string_view id, ResponseStore& store);

}  // namespace ds4::server::api
