#include "server/api/openai_responses_items.hpp"

#include "text/json_text.hpp"

namespace ds4::server::api {
namespace {

using ToolKind = ResponseTool::Kind;

constexpr std::string_view kInputBegin = R"({"input":")";

void write_call_name(JsonWriter& json, const ResponseTool& tool) {
  json.member("name", tool.name);
  if (!tool.name_space.empty()) json.member("namespace", tool.name_space);
}

/// The arguments of local_shell, as an action.
void write_shell_action(JsonWriter& json, const std::string& arguments) {
  json.begin_object().member("type", "exec");
  const auto members = text::json_object_members(arguments);
  for (const text::JsonMember& member : members.value_or(std::vector<text::JsonMember>{})) {
    if (member.key != "type") json.key(member.key).raw(member.value);
  }
  json.end_object();
}

void write_call(JsonWriter& json, const ResponseItem& item, const char* status, const std::string& text) {
  switch (item.tool.kind) {
    case ToolKind::function:
      json.member("type", "function_call").member("status", status);
      write_call_name(json, item.tool);
      json.member("call_id", item.call_id).member("arguments", text);
      break;
    case ToolKind::custom:
      json.member("type", "custom_tool_call").member("status", status);
      write_call_name(json, item.tool);
      json.member("call_id", item.call_id).member("input", text);
      break;
    case ToolKind::tool_search:
      json.member("type", "tool_search_call").member("status", status).member("call_id", item.call_id);
      json.member("execution", "client").key("arguments").raw(text.empty() ? "{}" : text);
      break;
    case ToolKind::local_shell:
      json.member("type", "local_shell_call").member("status", status).member("call_id", item.call_id);
      write_shell_action(json.key("action"), text);
      break;
  }
}

/// `text`: null if the item is only announced.
void write(JsonWriter& json, const ResponseItem& item, const char* status, const std::string* text) {
  json.begin_object().member("id", item.id);
  switch (item.kind) {
    case ResponseItem::Kind::reasoning:
      json.member("type", "reasoning").member("status", status).key("summary").begin_array();
      if (text != nullptr) {
        json.begin_object().member("type", "summary_text").member("text", *text).end_object();
      }
      json.end_array();
      break;
    case ResponseItem::Kind::message:
      json.member("type", "message").member("status", status).member("role", "assistant");
      json.key("content").begin_array();
      if (text != nullptr) write_text_part(json, *text);
      json.end_array();
      break;
    case ResponseItem::Kind::call:
      write_call(json, item, status, text != nullptr ? *text : std::string());
      break;
  }
  json.end_object();
}

/// Bytes of the character or escape that begins the rest of a JSON string, 0 if it is not all there yet.
size_t unit_bytes(std::string_view rest) {
  constexpr size_t kShortEscape = 2, kCodeEscape = 6;
  if (rest[0] != '\\') return 1;
  if (rest.size() < kShortEscape) return 0;
  if (rest[1] != 'u') return kShortEscape;
  if (rest.size() < kCodeEscape) return 0;
  // The first half of a surrogate pair waits for the second.
  const bool high = (rest[2] == 'd' || rest[2] == 'D') &&
                    std::string_view("89abAB").find(rest[3]) != std::string_view::npos;
  if (!high) return kCodeEscape;
  const std::string_view next = rest.substr(kCodeEscape);
  if (next.empty() || next == "\\") return 0;
  if (!next.starts_with("\\u")) return kCodeEscape;
  return next.size() < kCodeEscape ? 0 : 2 * kCodeEscape;
}

}  // namespace

void write_announced_item(JsonWriter& json, const ResponseItem& item) {
  write(json, item, "in_progress", nullptr);
}

void write_item(JsonWriter& json, const ResponseItem& item, const char* status) {
  write(json, item, status, &item.text);
}

void write_text_part(JsonWriter& json, std::string_view text) {
  json.begin_object().member("type", "output_text").member("text", text);
  json.key("annotations").begin_array().end_array().end_object();
}

std::string custom_input(const std::string& arguments) {
  const auto members = text::json_object_members(arguments);
  if (!members) return arguments;
  const text::JsonMember* input = nullptr;
  for (const text::JsonMember& member : *members) {
    if (member.key == "input") input = &member;
  }
  if (input == nullptr && members->size() == 1) input = &members->front();
  if (input == nullptr || !input->value.starts_with('"')) return arguments;
  return text::json_unquote(input->value);
}

std::string CustomInputReader::push(std::string_view arguments) {
  if (state_ == State::over) return "";
  pending_ += arguments;
  if (state_ == State::before) {
    if (pending_.size() < kInputBegin.size()) return "";
    state_ = pending_.starts_with(kInputBegin) ? State::inside : State::over;
    pending_.erase(0, kInputBegin.size());
    if (state_ == State::over) return "";
  }
  size_t end = 0;
  while (end < pending_.size()) {
    if (pending_[end] == '"') {
      state_ = State::over;
      break;
    }
    const size_t bytes = unit_bytes(std::string_view(pending_).substr(end));
    if (bytes == 0) break;
    end += bytes;
  }
  std::string piece = text::json_unquote('"' + pending_.substr(0, end) + '"');
  pending_.erase(0, end);
  text_ += piece;
  return piece;
}

}  // namespace ds4::server::api
