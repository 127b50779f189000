#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "server/api/error_body.hpp"
#include "server/api/history.hpp"
#include "server/api/ids.hpp"
#include "server/api/json_writer.hpp"
#include "server/api/openai_responses.hpp"
#include "server/api/request_fields.hpp"
#include "server/api/thinking_fields.hpp"

namespace ds4::server::api {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostToldBackBytes = 16 << 10;  // of a field, in every event that holds the response

void read_previous(const Fields& body, ResponseStore& store, ResponsesRequest& request) {
  if (body.has("conversation")) body.refuse("conversation", "is not supported; replay full input instead");
  request.previous_response_id = body.string("previous_response_id").value_or("");
  if (request.previous_response_id.empty()) return;
  const auto previous = store.get(request.previous_response_id);
  if (!previous) {
    body.errors().add("previous_response_id",
                      "The response of previous_response_id is not kept here; replay the full input instead",
                      "previous_response_not_found");
    return;
  }
  request.generation.messages = previous->messages;
}

ResponseFormat read_format(const Fields& body) {
  ResponseFormat format;
  const auto text = body.object("text");
  const auto fields = text ? text->object("format") : std::nullopt;
  if (!fields) return format;
  const std::string type = fields->string("type").value_or("text");
  if (type == "json_schema") {
    if (fields->object("schema")) {
      format.kind = ResponseFormat::Kind::json_schema;
      format.schema = fields->find("schema")->text();
      format.strict = fields->boolean("strict").value_or(false);
      format.field = text->path_of("format");
    } else {
      fields->wrong_value("schema", "must be given");
    }
  } else if (type == "json_object") {
    format.kind = ResponseFormat::Kind::json_object;
  } else if (type != "text") {
    fields->wrong_value("type", "must be text, json_object or json_schema");
  }
  return format;
}

bool read_summaries(const Fields& body) {
  const auto value = body.find("reasoning");
  if (!value || !value->is(Kind::object)) return false;
  const Fields reasoning = *body.object("reasoning");
  for (const char* name : {"summary", "generate_summary"}) {
    const std::string summary = reasoning.string(name).value_or("");
    if (summary == "auto" || summary == "concise" || summary == "detailed") return true;
  }
  return false;
}

/// Fields of this API that would change the answer.
void refuse_others(const Fields& body) {
  if (body.boolean("background").value_or(false)) body.refuse("background");
  for (const char* name : {"prompt", "response_format", "functions"}) {
    if (body.has(name)) body.refuse(name);
  }
  if (body.count("top_logprobs", 0, std::numeric_limits<int64_t>::max()).value_or(0) > 0)
    body.refuse("top_logprobs");
  if (body.count("n", 0, std::numeric_limits<int64_t>::max()).value_or(1) > 1) body.refuse("n");
  const auto include = body.array("include");
  if (include && std::any_of(include->begin(), include->end(), [](const JsonValue& value) {
        return value.is(Kind::string) && value.string() == "message.output_text.logprobs";
      })) {
    body.refuse("include", "message.output_text.logprobs is not supported");
  }
}

std::string told_back(const Fields& body, const ResponsesRequest& request) {
  const GenerationRequest& generation = request.generation;
  const auto raw = [&](std::string_view name, std::string_view otherwise) {
    const auto value = body.find(name);
    return std::string(value && value->text().size() <= kMostToldBackBytes ? value->text() : otherwise);
  };
  JsonWriter json;
  json.begin_object().key("max_output_tokens");
  if (generation.max_tokens) {
    json.integer(*generation.max_tokens);
  } else {
    json.null();
  }
  json.key("metadata").raw(raw("metadata", "{}")).key("parallel_tool_calls");
  json.raw(generation.parallel_tool_calls ? "true" : "false").member("store", request.store);
  json.key("temperature").number(generation.sampling.temperature);
  json.key("tool_choice").raw(raw("tool_choice", R"("auto")"));
  json.key("top_p").number(generation.sampling.top_p).member("truncation", "disabled");
  const std::string object = json.end_object().take();
  return object.substr(1, object.size() - 2);
}

/// Instructions belong to one request: they are not kept with the conversation.
void add_instructions(ResponsesRequest& request) {
  if (request.instructions.empty()) return;
  ChatMessage system;
  system.role = Role::system;
  system.content = request.instructions;
  auto& messages = request.generation.messages;
  messages.insert(messages.begin(), std::move(system));
}

ResponsesReplyOptions reply_options(ResponsesRequest& request, const std::shared_ptr<ResponseStore>& store) {
  ResponsesReplyOptions options;
  options.id = random_id("resp_", 24);
  options.created = static_cast<int64_t>(std::time(nullptr));
  options.model = request.generation.model;
  options.previous_response_id = request.previous_response_id;
  options.told_back = std::move(request.told_back);
  options.stream = request.stream;
  options.summaries = request.summaries;
  options.think = request.generation.thinking.mode;
  options.headers = applied_headers(request.generation.thinking, request.ignored_tools);
  options.tools = std::move(request.tools);
  options.new_id = [](std::string_view prefix) { return random_id(prefix, 24); };
  if (request.store) {
    options.store = store;
    const auto& messages = request.generation.messages;
    options.conversation.assign(messages.begin() + (request.instructions.empty() ? 0 : 1), messages.end());
  }
  return options;
}

http::Response not_kept() {
  RequestError error;
  error.status = 404;
  error.message = "This response is not kept here";
  error.code = "response_not_found";
  return openai_error_response(error);
}

}  // namespace

ResponsesRequest read_responses_request(const http::Request& request, const ServerInfo& info,
                                        ResponseStore& store, FieldErrors& errors) {
  ResponsesRequest responses;
  const auto object = parse_body(request.body, errors);
  if (!object) return responses;
  const Fields body(*object, "", errors);
  GenerationRequest& generation = responses.generation;
  generation.kind = GenerationRequest::Kind::chat;
  generation.model = read_model(body, info);
  if (const auto tools = body.array("tools")) read_response_tools(*tools, "tools", errors, responses);
  read_previous(body, store, responses);
  read_response_input(body, store, responses);
  if (const auto id = unanswerable_result(generation.messages)) {
    errors.add(
        "input",
        fmt::format("Responses continuation state is not available for call_id {}; retry by replaying the "
                    "full input history",
                    *id),
        "invalid_value");
  }
  keep_late_instructions_in_place(generation.messages);
  complete_instructions(generation.messages);
  responses.instructions = body.string("instructions").value_or("");
  add_instructions(responses);
  read_response_tool_choice(body, responses);
  generation.format = read_format(body);
  generation.thinking = read_thinking(body, generation.model, info.effort_profile, true);
  responses.summaries = read_summaries(body);
  read_sampling(body, generation);
  generation.max_tokens = read_max_tokens(body, {"max_output_tokens", "max_tokens"});
  generation.stop = read_stop(body, "stop");
  responses.stream = body.boolean("stream").value_or(false);
  responses.generation.stream = responses.stream;
  responses.store = body.boolean("store").value_or(true);
  refuse_others(body);
  refuse_unsupported(body);
  generation.conversation = conversation_hint(body, request);
  generation.body = request.body;
  if (!errors) responses.told_back = told_back(body, responses);
  return responses;
}

void handle_responses(const http::Request& request, std::shared_ptr<http::Exchange> exchange,
                      Generator& generator, const std::shared_ptr<ResponseStore>& store) {
  FieldErrors errors;
  ResponsesRequest responses = read_responses_request(request, generator.info(), *store, errors);
  reopen(responses.generation.messages);
  if (errors) return exchange->respond(openai_error_response(errors.first()));
  auto options = reply_options(responses, store);
  generator.submit(std::move(responses.generation),
                   make_responses_reply(std::move(options), std::move(exchange)));
}

http::Response answer_stored_response(std::string_view id, ResponseStore& store) {
  const auto stored = store.get(id);
  if (!stored) return not_kept();
  http::Response response;
  response.body = stored->body;
  return response;
}

http::Response delete_stored_response(std::string_view id, ResponseStore& store) {
  if (!store.erase(id)) return not_kept();
  JsonWriter json;
  json.begin_object().member("id", id).member("object", "response").member("deleted", true);
  http::Response response;
  response.body = json.end_object().take();
  return response;
}

}  // namespace ds4::server::api
