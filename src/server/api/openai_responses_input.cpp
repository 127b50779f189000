#include <fmt/format.h>

#include <utility>

#include "server/api/history.hpp"
#include "server/api/json_writer.hpp"
#include "server/api/openai_responses.hpp"

namespace ds4::server::api {
namespace {

using Kind = JsonValue::Kind;

/// The text of a part of a content, or nothing after noting an error.
std::optional<std::string> read_part(const JsonValue& part, const std::string& path, FieldErrors& errors) {
  if (part.is(Kind::string)) return part.string();
  const auto fields = element_fields(part, path, errors);
  if (!fields) return std::nullopt;
  const std::string type = fields->string("type").value_or("");
  constexpr std::string_view kTypes[] = {"input_text", "output_text", "text", "summary_text",
                                         "reasoning_text"};
  for (const std::string_view known : kTypes) {
    if (type == known) return fields->string("text").value_or("");
  }
  errors.add(path, fmt::format("{}: content of type {} is not supported", path, type.substr(0, 40)),
             "unsupported_content");
  return std::nullopt;
}

/// A string, null, or an array of strings and text parts, joined.
std::string read_parts(const Fields& item, std::string_view name) {
  const auto value = item.find(name);
  if (!value) return "";
  if (value->is(Kind::string)) return value->string();
  if (!value->is(Kind::array)) {
    item.wrong_type(name, "a string or an array of parts");
    return "";
  }
  std::string text;
  size_t index = 0;
  for (const JsonValue& part : value->elements()) {
    const auto piece = read_part(part, element_path(item.path_of(name), index++), item.errors());
    if (!piece) return "";
    text += *piece;
  }
  return text;
}

/// A string, or the text of any other value.
std::optional<std::string> read_text_or_raw(const Fields& item, std::string_view name) {
  const auto value = item.find(name);
  if (!value) return std::nullopt;
  return value->is(Kind::string) ? value->string() : std::string(value->text());
}

/// The first of these members that is there.
std::optional<std::string> read_first(const Fields& item, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (auto text = read_text_or_raw(item, name)) return text;
  }
  return std::nullopt;
}

/// What a tool gave back: text, text parts, or any other value as it was sent.
std::string read_output(const Fields& item, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const auto value = item.find(name);
    if (!value) continue;
    if (value->is(Kind::array) && name != "tools") return read_parts(item, name);
    return *read_text_or_raw(item, name);
  }
  return "";
}

std::optional<Role> role_of(std::string_view name) {
  if (name == "system") return Role::system;
  if (name == "developer") return Role::developer;
  if (name == "user") return Role::user;
  if (name == "assistant") return Role::assistant;
  return std::nullopt;
}

std::string identity(const Fields& item) {
  std::string id = item.string("call_id").value_or("");
  return id.empty() ? item.string("id").value_or("") : id;
}

class InputReader {
 public:
  InputReader(ResponseStore& store, ResponsesRequest& request)
      : store_(store), request_(request), messages_(request.generation.messages) {}

  void read(const Fields& item) {
    const std::string type = item.string("type").value_or("message");
    const std::string status = item.string("status").value_or("");
    // Half a call cannot be answered; texts that a limit cut are what the model said.
    const bool may_be_cut = type == "message" || type == "reasoning";
    if (!status.empty() && status != "completed" && !(may_be_cut && status == "incomplete")) {
      return item.refuse("status",
                         fmt::format("{} is not supported: items must be completed", status.substr(0, 40)));
    }
    if (type == "message") return read_message(item);
    if (type == "reasoning") return read_reasoning(item);
    if (type == "item_reference") return read_reference(item);
    if (type == "function_call" || type == "custom_tool_call") return read_call(item, type);
    if (type == "local_shell_call") return add_call(item, "local_shell", read_shell_action(item));
    if (type == "tool_search_call") return add_call(item, "tool_search", read_action(item));
    if (type == "web_search_call" || type == "image_generation_call")
      return add_call(item, type, read_action(item));
    if (type == "function_call_output" || type == "custom_tool_call_output") {
      return add_result(item, read_output(item, {"output"}));
    }
    if (type == "tool_search_output" || type == "tool_search_call_output") read_found_tools(item);
    if (type == "local_shell_call_output" || type == "web_search_call_output" ||
        type == "tool_search_output" || type == "tool_search_call_output" ||
        type == "image_generation_call_output") {
      return add_result(item, read_output(item, {"output", "result", "tools"}));
    }
    if (type == "compaction" || type == "context_compaction") return;
    item.refuse("type",
                fmt::format("{} is not supported; replay the full input instead", type.substr(0, 40)));
  }

  /// Reasoning that nothing follows is an assistant message of its own.
  void flush_reasoning() {
    if (reasoning_.empty()) return;
    ChatMessage message;
    message.role = Role::assistant;
    message.reasoning = std::exchange(reasoning_, "");
    messages_.push_back(std::move(message));
  }

 private:
  void read_message(const Fields& item) {
    const auto role = role_of(item.string("role").value_or("user"));
    if (!role) return item.wrong_value("role", "must be system, developer, user or assistant");
    if (*role != Role::assistant) flush_reasoning();
    ChatMessage message;
    message.role = *role;
    message.content = read_parts(item, "content");
    if (*role == Role::assistant) message.reasoning = std::exchange(reasoning_, "");
    messages_.push_back(std::move(message));
  }

  void read_reference(const Fields& item) {
    const std::string id = item.string("id").value_or("");
    const auto response = store_.get_of_item(id);
    FieldErrors ignored;  // it is our own text
    const auto body = response ? parse_body(response->body, ignored) : std::nullopt;
    const auto output = body ? Fields(*body, "", ignored).array("output") : std::nullopt;
    for (const JsonValue& value : output.value_or(std::vector<JsonValue>())) {
      const Fields stored(value, item.path_of("id"), item.errors());
      if (stored.string("id") == id) return read(stored);
    }
    item.errors().add(
        item.path_of("id"),
        fmt::format("The item {} is not kept here; send the item itself instead", id.substr(0, 80)),
        "item_not_found");
  }

  void read_reasoning(const Fields& item) {
    for (const char* name : {"summary", "content"}) {
      if (const std::string text = read_parts(item, name); !text.empty()) append_piece(reasoning_, text);
    }
  }
  static void append_piece(std::string& joined, std::string_view text) {
    if (!joined.empty()) joined.push_back('\n');
    joined += text;
  }

  void read_call(const Fields& item, const std::string& type) {
    std::string name = item.string("name").value_or("");
    if (name.empty()) return item.wrong_value("name", "must be given");
    name = item.string("namespace").value_or("") + name;
    if (type == "custom_tool_call") {
      // As the model wrote it.
      JsonWriter json;
      json.begin_object().member("input", read_first(item, {"input", "arguments"}).value_or(""));
      return add_call(item, std::move(name), json.end_object().take());
    }
    add_call(item, std::move(name), read_first(item, {"arguments", "input"}).value_or("{}"));
  }

  static std::string read_action(const Fields& item) {
    return read_first(item, {"action", "arguments", "input"}).value_or("{}");
  }

  /// The arguments that the model wrote: the type of the action is no part of them.
  static std::string read_shell_action(const Fields& item) {
    std::string action = read_action(item);
    const auto members = text::json_object_members(action);
    if (!members) return action;
    JsonWriter arguments;
    arguments.begin_object();
    for (const text::JsonMember& member : *members) {
      if (member.key != "type") arguments.key(member.key).raw(member.value);
    }
    return arguments.end_object().take();
  }

  void add_call(const Fields& item, std::string name, std::string arguments) {
    if (messages_.empty() || messages_.back().role != Role::assistant)
      messages_.emplace_back().role = Role::assistant;
    ChatMessage& message = messages_.back();
    if (message.reasoning.empty()) message.reasoning = reasoning_;
    reasoning_.clear();
    if (text::skip_white_space(arguments, 0) == arguments.size()) arguments = "{}";
    message.tool_calls.push_back({identity(item), std::move(name), std::move(arguments)});
  }

  void add_result(const Fields& item, std::string output) {
    flush_reasoning();
    ChatMessage message;
    message.role = Role::tool;
    message.tool_call_id = identity(item);
    message.content = std::move(output);
    messages_.push_back(std::move(message));
  }

  void read_found_tools(const Fields& item) {
    if (const auto tools = item.array("tools"))
      read_response_tools(*tools, item.path_of("tools"), item.errors(), request_);
  }

  ResponseStore& store_;
  ResponsesRequest& request_;
  std::vector<ChatMessage>& messages_;
  std::string reasoning_;  // of the assistant's message or call that comes next
};

}  // namespace

void read_response_input(const Fields& body, ResponseStore& store, ResponsesRequest& request) {
  const auto input = body.find("input");
  if (!input) return body.errors().add("input", "missing input", "missing_required_parameter");
  if (input->is(Kind::string)) {
    request.generation.messages.emplace_back().content = input->string();
    return;
  }
  if (!input->is(Kind::array)) return body.wrong_type("input", "a string or an array of items");
  InputReader reader(store, request);
  size_t index = 0;
  for (const JsonValue& element : input->elements()) {
    const auto item = element_fields(element, element_path("input", index++), body.errors());
    if (item) reader.read(*item);
    if (body.errors()) return;
  }
  reader.flush_reasoning();
  if (request.generation.messages.empty()) body.wrong_value("input", "must not be empty");
}

}  // namespace ds4::server::api
