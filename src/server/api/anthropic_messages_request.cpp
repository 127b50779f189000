#include <fmt/format.h>

#include <algorithm>

#include "server/api/anthropic_messages.hpp"
#include "server/api/error_body.hpp"
#include "server/api/history.hpp"
#include "server/api/ids.hpp"
#include "server/api/request_fields.hpp"
#include "server/api/thinking_fields.hpp"

namespace ds4::server::api {
namespace {

using Kind = JsonValue::Kind;

/// Tools that the original service runs itself; their types end in a date.
constexpr std::string_view kHostedTools[] = {"web_search",       "web_fetch",   "code_execution",
                                             "tool_search_tool", "mcp_toolset", "advisor"};

bool is_hosted(std::string_view type) {
  return std::any_of(std::begin(kHostedTools), std::end(kHostedTools),
                     [&](std::string_view name) { return type.starts_with(name); });
}

void read_tools(const Fields& body, const VolatileTextOptions& options, MessagesRequest& request) {
  const auto tools = body.array("tools");
  if (!tools) return;
  size_t index = 0;
  for (const JsonValue& element : *tools) {
    const auto fields = element_fields(element, element_path("tools", index++), body.errors());
    if (!fields) return;
    const std::string type = fields->string("type").value_or("custom");
    if (is_hosted(type)) {
      ignore_tool(request.ignored_tools, type);
      continue;
    }
    if (type != "custom" && !fields->has("input_schema")) {
      return fields->refuse(
          "type", fmt::format("{} is not supported; tools need an input_schema", type.substr(0, 40)));
    }
    Tool tool;
    tool.name = fields->string("name").value_or("");
    if (tool.name.empty()) return fields->wrong_value("name", "must be given");
    if (fields->object("input_schema")) tool.parameters = fields->find("input_schema")->text();
    tool.schema = without_volatile_members(element, options);
    request.generation.tools.push_back(std::move(tool));
  }
}

void read_tool_choice(const Fields& body, GenerationRequest& request) {
  const auto choice = body.object("tool_choice");
  if (!choice) return;
  request.parallel_tool_calls = !choice->boolean("disable_parallel_tool_use").value_or(false);
  const std::string type = choice->string("type").value_or("auto");
  if (type == "none") {
    request.tool_choice = ToolChoice::none;
  } else if (type == "any") {
    request.tool_choice = ToolChoice::required;
    if (request.tools.empty()) choice->wrong_value("type", "any needs tools");
  } else if (type == "tool") {
    request.tool_choice = ToolChoice::named;
    request.tool_choice_name = choice->string("name").value_or("");
    const bool known = std::any_of(request.tools.begin(), request.tools.end(),
                                   [&](const Tool& tool) { return tool.name == request.tool_choice_name; });
    if (!known) choice->wrong_value("name", "is not the name of a tool of this request");
  } else if (type != "auto") {
    choice->wrong_value("type", "must be auto, any, tool or none");
  }
}

void read_format(const Fields& holder, std::string_view name, ResponseFormat& format) {
  const auto fields = holder.object(name);
  if (!fields) return;
  const std::string type = fields->string("type").value_or("");
  if (type == "json_schema") {
    if (!fields->object("schema")) return fields->wrong_value("schema", "must be given");
    format.kind = ResponseFormat::Kind::json_schema;
    format.schema = fields->find("schema")->text();
    format.field = holder.path_of(name);
  } else if (type != "text") {
    fields->wrong_value("type", "must be json_schema");
  }
}

/// Edits of the conversation before the model sees it. How much reasoning of earlier turns is shown is the
/// template's affair, whatever clients ask for.
void refuse_edits(const Fields& body) {
  const auto management = body.object("context_management");
  const auto edits = management ? management->array("edits") : std::nullopt;
  size_t index = 0;
  for (const JsonValue& edit : edits.value_or(std::vector<JsonValue>())) {
    const auto fields =
        element_fields(edit, element_path(management->path_of("edits"), index++), body.errors());
    if (!fields) return;
    const std::string type = fields->string("type").value_or("");
    if (!type.starts_with("clear_thinking")) {
      fields->refuse("type", fmt::format("{} is not supported", type.substr(0, 40)));
    }
  }
}

/// The session's id, or what names the user.
std::string conversation_of(const Fields& body, const http::Request& request) {
  if (std::string hint = conversation_hint(body, request); !hint.empty()) return hint;
  if (const auto session = request.header("x-claude-code-session-id")) return std::string(*session);
  const auto metadata = body.find("metadata");
  if (!metadata || !metadata->is(Kind::object)) return "";
  FieldErrors ignored;
  return Fields(*metadata, "metadata", ignored).string("user_id").value_or("");
}

}  // namespace

MessagesRequest read_messages_request(const http::Request& request, const ServerInfo& info,
                                      const MessagesOptions& options, FieldErrors& errors) {
  MessagesRequest messages;
  const auto object = parse_body(request.body, errors);
  if (!object) return messages;
  const Fields body(*object, "", errors);
  GenerationRequest& generation = messages.generation;
  generation.kind = GenerationRequest::Kind::chat;
  generation.tool_id_prefix = "toolu_";
  generation.model = read_model(body, info);
  generation.messages = read_anthropic_messages(body, options.volatile_text);
  read_tools(body, options.volatile_text, messages);
  read_tool_choice(body, generation);
  generation.thinking = read_thinking(body, generation.model, info.effort_profile, false);
  read_format(body, "output_format", generation.format);
  if (const auto output = body.object("output_config")) read_format(*output, "format", generation.format);
  read_sampling(body, generation);
  generation.max_tokens = read_max_tokens(body, {"max_tokens"});
  generation.stop = read_stop(body, "stop_sequences");
  messages.stream = body.boolean("stream").value_or(false);
  messages.generation.stream = messages.stream;
  refuse_edits(body);
  refuse_unsupported(body);
  generation.conversation = conversation_of(body, request);
  generation.body = request.body;
  return messages;
}

void handle_messages(const http::Request& request, std::shared_ptr<http::Exchange> exchange,
                     Generator& generator, const MessagesOptions& options) {
  FieldErrors errors;
  MessagesRequest messages = read_messages_request(request, generator.info(), options, errors);
  // Counting their tokens is possible.
  const auto& turns = messages.generation.messages;
  if (!turns.empty() && turns.back().role == Role::assistant) {
    errors.add("messages", "messages must not end with an assistant message: continuing it is not supported",
               "unsupported_parameter");
  }
  if (errors) return exchange->respond(anthropic_error_response(errors.first()));
  MessagesReplyOptions reply;
  reply.id = random_id("msg_", 24);
  reply.model = messages.generation.model;
  reply.stream = messages.stream;
  reply.headers = applied_headers(messages.generation.thinking, messages.ignored_tools);
  generator.submit(std::move(messages.generation),
                   make_messages_reply(std::move(reply), std::move(exchange)));
}

http::Response answer_count_tokens(const http::Request& request, const Generator& generator,
                                   const MessagesOptions& options) {
  FieldErrors errors;
  const MessagesRequest messages = read_messages_request(request, generator.info(), options, errors);
  if (errors) return anthropic_error_response(errors.first());
  const Generator::Count count = generator.count(messages.generation);
  if (count.error) return anthropic_error_response(*count.error);
  http::Response response;
  response.body = fmt::format("{{\"input_tokens\":{}}}\n", count.prompt_tokens);
  return response;
}

}  // namespace ds4::server::api
