#include "server/api/history.hpp"

#include <algorithm>
#include <unordered_set>

#include "server/api/thinking_fields.hpp"

namespace ds4::server::api {
namespace {

constexpr size_t kLongestToolType = 40;
constexpr size_t kMostIgnoredTools = 16;

bool instructs(const ChatMessage& message) {
  return message.role == Role::system || message.role == Role::developer;
}

}  // namespace

void append_line(std::string& joined, std::string_view text) {
  if (!joined.empty() && joined.back() != '\n') joined.push_back('\n');
  joined += text;
}

void keep_late_instructions_in_place(std::vector<ChatMessage>& messages) {
  const auto first = std::find_if_not(messages.begin(), messages.end(), instructs);
  for (auto message = first; message != messages.end(); ++message) {
    if (instructs(*message)) message->role = Role::user;
  }
}

std::optional<std::string> unanswerable_result(const std::vector<ChatMessage>& messages) {
  std::unordered_set<std::string_view> calls;
  for (const ChatMessage& message : messages) {
    for (const ToolCall& call : message.tool_calls) calls.insert(call.id);
    if (message.role == Role::tool && !calls.contains(message.tool_call_id)) return message.tool_call_id;
  }
  return std::nullopt;
}

http::HeaderList applied_headers(const Thinking& thinking, const std::vector<std::string>& ignored_tools) {
  http::HeaderList headers = thinking_header(thinking);
  std::string list;
  for (const std::string& type : ignored_tools) list += (list.empty() ? "" : ", ") + type;
  if (!list.empty()) headers.emplace_back("x-ds4-ignored-tools", std::move(list));
  return headers;
}

void ignore_tool(std::vector<std::string>& ignored_tools, std::string_view type) {
  const std::string name(type.substr(0, kLongestToolType));
  if (ignored_tools.size() == kMostIgnoredTools) return;
  if (std::find(ignored_tools.begin(), ignored_tools.end(), name) == ignored_tools.end())
    ignored_tools.push_back(name);
}

}  // namespace ds4::server::api
