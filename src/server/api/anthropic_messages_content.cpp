#include <fmt/format.h>

#include "server/api/anthropic_messages.hpp"
#include "server/api/history.hpp"

namespace ds4::server::api {
namespace {

using Kind = JsonValue::Kind;

void unsupported_block(const Fields& block, std::string_view path, std::string_view type) {
  block.errors().add(std::string(path),
                     fmt::format("{}: content of type {} is not supported", path, type.substr(0, 40)),
                     "unsupported_content");
}

/// Calls `read(block, type, path)` for every block of a content, strings being text blocks; `read_text(text)`
/// for a content that is a string.
template <class ReadBlock, class ReadText>
void for_each_block(const Fields& owner, std::string_view name, ReadBlock read, ReadText read_text) {
  const auto content = owner.find(name);
  if (!content) return;
  if (content->is(Kind::string)) return read_text(content->string());
  if (!content->is(Kind::array)) return owner.wrong_type(name, "a string or an array of blocks");
  size_t index = 0;
  for (const JsonValue& element : content->elements()) {
    if (owner.errors()) return;
    const std::string path = element_path(owner.path_of(name), index++);
    if (element.is(Kind::string)) {
      read_text(element.string());
    } else if (const auto block = element_fields(element, path, owner.errors())) {
      read(*block, block->string("type").value_or("text"), path);
    }
  }
}

std::string read_system_text(const Fields& owner, std::string_view name, const VolatileTextOptions& options) {
  std::string system;
  const auto add = [&](const std::string& text) {
    const std::string_view kept = without_volatile_lines(text, options);
    if (!kept.empty()) append_line(system, kept);
  };
  for_each_block(
      owner, name,
      [&](const Fields& block, const std::string& type, const std::string& path) {
        if (type != "text") return unsupported_block(block, path, type);
        add(block.string("text").value_or(""));
      },
      add);
  return system;
}

ChatMessage read_tool_result(const Fields& result) {
  ChatMessage message;
  message.role = Role::tool;
  message.tool_call_id = result.string("tool_use_id").value_or("");
  if (message.tool_call_id.empty()) result.wrong_value("tool_use_id", "must be given");
  for_each_block(
      result, "content",
      [&](const Fields& block, const std::string& type, const std::string& path) {
        if (type == "text") {
          message.content += block.string("text").value_or("");
        } else if (type == "tool_reference") {  // what a client's search for tools found
          append_line(message.content, block.string("tool_name").value_or(""));
        } else {
          unsupported_block(block, path, type);
        }
      },
      [&](const std::string& text) { message.content += text; });
  return message;
}

void read_user(const Fields& message, std::vector<ChatMessage>& messages) {
  ChatMessage user;
  bool any_text = false, any_result = false;
  const auto add_text = [&](const std::string& text) {
    user.content += text;
    any_text = true;
  };
  for_each_block(
      message, "content",
      [&](const Fields& block, const std::string& type, const std::string& path) {
        if (type == "text") {
          add_text(block.string("text").value_or(""));
        } else if (type == "tool_result") {
          messages.push_back(read_tool_result(block));
          any_result = true;
        } else {
          unsupported_block(block, path, type);
        }
      },
      add_text);
  if (any_text || !any_result) messages.push_back(std::move(user));
}

/// What the original service's own tools left behind, and what only it can read.
bool is_foreign(std::string_view type) {
  return type == "redacted_thinking" || type == "server_tool_use" || type == "mcp_tool_use" ||
         (type.ends_with("_tool_result") && type != "tool_result");
}

void read_assistant(const Fields& message, ChatMessage& assistant) {
  const auto add_text = [&](const std::string& text) { assistant.content += text; };
  for_each_block(
      message, "content",
      [&](const Fields& block, const std::string& type, const std::string& path) {
        if (type == "text") {
          add_text(block.string("text").value_or(""));
        } else if (type == "thinking") {
          assistant.reasoning += block.string("thinking").value_or("");
        } else if (type == "tool_use") {
          ToolCall call;
          call.id = block.string("id").value_or("");
          call.name = block.string("name").value_or("");
          if (call.name.empty()) block.wrong_value("name", "must be given");
          const auto input = block.find("input");
          call.arguments = input ? input->text() : "{}";
          assistant.tool_calls.push_back(std::move(call));
        } else if (!is_foreign(type)) {
          unsupported_block(block, path, type);
        }
      },
      add_text);
}

void read_message(const Fields& message, const VolatileTextOptions& options,
                  std::vector<ChatMessage>& messages) {
  const std::string role = message.string("role").value_or("user");
  if (role == "user") return read_user(message, messages);
  if (role == "assistant") {
    // Two in a row are one turn.
    if (messages.empty() || messages.back().role != Role::assistant) {
      messages.emplace_back().role = Role::assistant;
    }
    return read_assistant(message, messages.back());
  }
  if (role != "system" && role != "developer") {
    return message.wrong_value("role", "must be user, assistant or system");
  }
  ChatMessage system;
  system.role = Role::system;
  system.content = read_system_text(message, "content", options);
  messages.push_back(std::move(system));
}

}  // namespace

std::vector<ChatMessage> read_anthropic_messages(const Fields& body, const VolatileTextOptions& options) {
  std::vector<ChatMessage> messages;
  if (std::string system = read_system_text(body, "system", options); !system.empty()) {
    messages.emplace_back().role = Role::system;
    messages.back().content = std::move(system);
  }
  if (!body.has("messages")) {
    body.errors().add("messages", "missing messages", "missing_required_parameter");
    return messages;
  }
  const auto elements = body.array("messages");
  if (!elements) return messages;
  if (elements->empty()) body.wrong_value("messages", "must not be empty");
  size_t index = 0;
  for (const JsonValue& element : *elements) {
    const auto message = element_fields(element, element_path("messages", index++), body.errors());
    if (message) read_message(*message, options, messages);
    if (body.errors()) return messages;
  }
  if (const auto id = unanswerable_result(messages)) {
    body.errors().add(
        "messages",
        fmt::format("Anthropic continuation state is not available for tool_use_id {}; retry by "
                    "replaying the full messages history",
                    *id),
        "invalid_value");
  }
  keep_late_instructions_in_place(messages);
  complete_instructions(messages);
  return messages;
}

}  // namespace ds4::server::api
