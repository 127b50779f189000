#include <fmt/format.h>

#include <algorithm>

#include "server/api/error_body.hpp"
#include "server/api/history.hpp"
#include "server/api/openai_chat.hpp"
#include "server/api/request_fields.hpp"
#include "server/api/thinking_fields.hpp"

namespace ds4::server::api {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostChoices = 16;
constexpr size_t kMostTopLogprobs = 20;
constexpr size_t kMostTools = 4096;

/// A tool as the model sees it: `tool` is the object with its name, `schema` the text shown.
void add_tool(const Fields& tool, std::string_view schema, GenerationRequest& request) {
  Tool result;
  result.name = tool.string("name").value_or("");
  if (result.name.empty()) return tool.wrong_value("name", "must be given");
  result.schema = schema;
  for (const char* name : {"parameters", "input_schema"}) {
    const auto parameters = tool.find(name);
    if (!parameters) continue;
    if (!parameters->is(Kind::object)) return tool.wrong_type(name, "an object");
    result.parameters = parameters->text();
    break;
  }
  request.tools.push_back(std::move(result));
}

void read_tool(const JsonValue& element, const std::string& path, FieldErrors& errors,
               GenerationRequest& request) {
  const auto fields = element_fields(element, path, errors);
  if (!fields) return;
  const std::string type = fields->string("type").value_or("function");
  if (fields->has("function")) {
    if (const auto function = fields->object("function")) {
      add_tool(*function, fields->find("function")->text(), request);
    }
  } else if (type == "function") {
    if (!fields->has("name")) return fields->wrong_value("function", "must be given");
    add_tool(*fields, element.text(), request);
  } else {
    fields->refuse("type", fmt::format("{} is not supported; tools are functions", type.substr(0, 40)));
  }
}

void read_named_choice(const Fields& choice, GenerationRequest& request) {
  const std::string type = choice.string("type").value_or("");
  if (type != "function")
    return choice.refuse("type", fmt::format("{} is not supported", type.substr(0, 40)));
  const auto function = choice.object("function");
  const std::string name = (function ? *function : choice).string("name").value_or("");
  const bool known = std::any_of(request.tools.begin(), request.tools.end(),
                                 [&](const Tool& tool) { return tool.name == name; });
  if (!known) {
    (function ? *function : choice).wrong_value("name", "is not the name of a tool of this request");
    return;
  }
  request.tool_choice = ToolChoice::named;
  request.tool_choice_name = name;
}

void read_tool_choice(const Fields& body, GenerationRequest& request) {
  const auto choice = body.find("tool_choice");
  if (!choice) return;
  if (choice->is(Kind::object)) return read_named_choice(*body.object("tool_choice"), request);
  const std::string word = body.string("tool_choice").value_or("auto");
  if (word == "none") {
    request.tool_choice = ToolChoice::none;
  } else if (word == "required" || word == "any") {
    request.tool_choice = ToolChoice::required;
    if (request.tools.empty()) body.wrong_value("tool_choice", "needs tools");
  } else if (word != "auto") {
    body.wrong_value("tool_choice", "must be none, auto, required or a function");
  }
}

/// The fields that tools had before they were tools.
void refuse_functions(const Fields& body) {
  const auto functions = body.array("functions");
  if (functions && !functions->empty()) body.refuse("functions", "is not supported; use tools");
  const auto call = body.find("function_call");
  if (!call) return;
  const bool harmless = call->is(Kind::string) && (call->string() == "auto" || call->string() == "none");
  if (!harmless) body.refuse("function_call", "is not supported; use tool_choice");
}

void read_logprobs(const Fields& body, GenerationRequest& request) {
  request.logprobs = body.boolean("logprobs").value_or(false);
  request.top_logprobs = body.count("top_logprobs", 0, kMostTopLogprobs).value_or(0);
  if (request.top_logprobs > 0 && !request.logprobs)
    body.wrong_value("top_logprobs", "needs logprobs to be true");
}

/// Other servers' ways to ask for the answer alone.
bool read_hide_reasoning(const Fields& body) {
  const std::string format = body.string("reasoning_format").value_or("");
  if (format == "raw" || format == "none") body.refuse("reasoning_format", format + " is not supported");
  const auto reasoning = body.find("reasoning");
  const bool excluded = reasoning && reasoning->is(Kind::object) &&
                        body.object("reasoning")->boolean("exclude").value_or(false);
  return excluded || format == "hidden" || !body.boolean("include_reasoning").value_or(true);
}

}  // namespace

void read_chat_tools(const Fields& body, GenerationRequest& request) {
  if (const auto tools = body.array("tools")) {
    size_t index = 0;
    if (tools->size() > kMostTools) return body.wrong_value("tools", "has too many entries");
    for (const JsonValue& tool : *tools) {
      read_tool(tool, element_path("tools", index++), body.errors(), request);
    }
  }
  read_tool_choice(body, request);
  request.parallel_tool_calls = body.boolean("parallel_tool_calls").value_or(true);
}

ResponseFormat read_response_format(const Fields& body) {
  ResponseFormat format;
  const auto fields = body.object("response_format");
  if (!fields) return format;
  const std::string type = fields->string("type").value_or("");
  // {"type":"json_object","schema":...} is how servers other than OpenAI's take a schema.
  auto holder = type == "json_schema" ? fields->object("json_schema") : fields;
  if (type == "json_schema" || (type == "json_object" && fields->has("schema"))) {
    if (!holder || !holder->object("schema")) {
      (holder ? *holder : *fields).wrong_value(holder ? "schema" : "json_schema", "must be given");
      return format;
    }
    format.kind = ResponseFormat::Kind::json_schema;
    format.schema = holder->find("schema")->text();
    format.strict = holder->boolean("strict").value_or(false);
  } else if (type == "json_object") {
    format.kind = ResponseFormat::Kind::json_object;
  } else if (type != "text") {
    fields->wrong_value("type", "must be text, json_object or json_schema");
  }
  return format;
}

ChatRequest read_chat_request(const http::Request& request, const ServerInfo& info, FieldErrors& errors) {
  ChatRequest chat;
  const auto object = parse_body(request.body, errors);
  if (!object) return chat;
  const Fields body(*object, "", errors);
  GenerationRequest& generation = chat.generation;
  generation.kind = GenerationRequest::Kind::chat;
  generation.model = read_model(body, info);
  generation.messages = read_chat_messages(body);
  read_chat_tools(body, generation);
  generation.format = read_response_format(body);
  generation.thinking = read_thinking(body, generation.model, info.effort_profile, false);
  read_sampling(body, generation);
  generation.max_tokens = read_max_tokens(body, {"max_tokens", "max_completion_tokens"});
  generation.stop = read_stop(body, "stop");
  generation.choices = body.count("n", 1, kMostChoices).value_or(1);
  read_logprobs(body, generation);
  chat.stream = body.boolean("stream").value_or(false);
  chat.generation.stream = chat.stream;
  if (const auto stream = body.object("stream_options")) {
    chat.include_usage = stream->boolean("include_usage").value_or(false);
  }
  chat.hide_reasoning = read_hide_reasoning(body);
  refuse_functions(body);
  refuse_unsupported(body);
  generation.conversation = conversation_hint(body, request);
  generation.body = request.body;
  return chat;
}

void handle_chat_completions(const http::Request& request, std::shared_ptr<http::Exchange> exchange,
                             Generator& generator) {
  FieldErrors errors;
  ChatRequest chat = read_chat_request(request, generator.info(), errors);
  reopen(chat.generation.messages);
  if (errors) return exchange->respond(openai_error_response(errors.first()));
  auto options = reply_options("chatcmpl-", chat.generation, chat.stream, chat.include_usage);
  options.hide_reasoning = chat.hide_reasoning;
  generator.submit(std::move(chat.generation), make_chat_reply(options, std::move(exchange)));
}

}  // namespace ds4::server::api
