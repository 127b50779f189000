#include <fmt/format.h>

#include "server/api/history.hpp"
#include "server/api/openai_chat.hpp"
#include "server/api/request_fields.hpp"

namespace ds4::server::api {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostMessages = size_t{1} << 16;

std::optional<Role> role_of(std::string_view name) {
  if (name == "system") return Role::system;
  if (name == "developer") return Role::developer;
  if (name == "user") return Role::user;
  if (name == "assistant") return Role::assistant;
  if (name == "tool" || name == "function") return Role::tool;
  return std::nullopt;
}

/// The arguments of a call in the history: the text that a client got, or the value that it made of it.
std::string read_arguments(const Fields& function) {
  const auto value = function.find("arguments");
  if (!value) return "{}";
  std::string text = value->is(Kind::string) ? value->string() : std::string(value->text());
  return text::skip_white_space(text, 0) == text.size() ? "{}" : text;
}

std::optional<ToolCall> read_function(const Fields& function) {
  ToolCall call;
  call.name = function.string("name").value_or("");
  if (call.name.empty()) {
    function.wrong_value("name", "must be given");
    return std::nullopt;
  }
  call.arguments = read_arguments(function);
  return call;
}

void read_calls(const Fields& message, ChatMessage& result) {
  if (const auto calls = message.array("tool_calls")) {
    size_t index = 0;
    for (const JsonValue& element : *calls) {
      const std::string path = element_path(message.path_of("tool_calls"), index++);
      const auto fields = element_fields(element, path, message.errors());
      if (!fields) return;
      if (const std::string type = fields->string("type").value_or("function"); type != "function") {
        return fields->refuse("type", fmt::format("{} is not supported", type.substr(0, 40)));
      }
      const auto function = fields->object("function");
      if (!function) return fields->wrong_value("function", "must be given");
      auto call = read_function(*function);
      if (!call) return;
      call->id = fields->string("id").value_or("");
      result.tool_calls.push_back(std::move(*call));
    }
  }
  if (const auto function = message.object("function_call")) {  // before there were tools
    if (auto call = read_function(*function)) result.tool_calls.push_back(std::move(*call));
  }
}

void read_assistant(const Fields& message, ChatMessage& result) {
  if (std::string reasoning = read_reasoning_text(message); !reasoning.empty()) {
    result.reasoning = std::move(reasoning);
  }
  if (result.content.empty()) result.content = message.string("refusal").value_or("");
  for (const char* name : {"prefix", "partial"}) {
    if (message.boolean(name).value_or(false)) message.refuse(name);
  }
  read_calls(message, result);
}

}  // namespace

std::vector<ChatMessage> read_chat_messages(const Fields& body) {
  std::vector<ChatMessage> messages;
  if (!body.has("messages")) {
    body.errors().add("messages", "missing messages", "missing_required_parameter");
    return messages;
  }
  const auto elements = body.array("messages");
  if (!elements) return messages;
  if (elements->empty()) body.wrong_value("messages", "must not be empty");
  if (elements->size() > kMostMessages) body.wrong_value("messages", "has too many entries");
  size_t index = 0;
  for (const JsonValue& element : *elements) {
    if (body.errors()) break;
    const auto message = element_fields(element, element_path("messages", index++), body.errors());
    if (!message) break;
    const auto role = role_of(message->string("role").value_or("user"));
    if (!role) message->wrong_value("role", "must be system, developer, user, assistant or tool");
    ChatMessage result;
    result.role = role.value_or(Role::user);
    if (const auto content = message->find("content")) {
      std::string* reasoning = result.role == Role::assistant ? &result.reasoning : nullptr;
      result.content = read_text_content(*content, message->path_of("content"), body.errors(), reasoning);
    }
    if (result.role == Role::assistant) read_assistant(*message, result);
    if (result.role == Role::tool) result.tool_call_id = message->string("tool_call_id").value_or("");
    messages.push_back(std::move(result));
  }
  keep_late_instructions_in_place(messages);
  complete_instructions(messages);
  return messages;
}

}  // namespace ds4::server::api
