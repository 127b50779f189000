#include "server/api/history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "server/api/thinking_fields.hpp"

namespace ds4::server::api {
namespace {

constexpr size_t kLongestToolType = 40;
constexpr size_t kMostIgnoredTools = 16;

/// A system text inside a turn of the user, marked the way clients mark such texts themselves.
std::string as_reminder(std::string_view text) {
  constexpr std::string_view kOpen = "<system-reminder>", kClose = "</system-reminder>";
  if (text.find(kOpen) != std::string_view::npos) return std::string(text);
  return fmt::format("{}\n{}\n{}", kOpen, text, kClose);
}

bool instructs(const ChatMessage& message) {
  return message.role == Role::system || message.role == Role::developer;
}

}  // namespace

void append_line(std::string& joined, std::string_view text) {
  if (!joined.empty() && joined.back() != '\n') joined.push_back('\n');
  joined += text;
}

void keep_late_instructions_in_place(std::vector<ChatMessage>& messages) {
  // Results of one turn belong together.
  for (size_t i = 1; i + 1 < messages.size(); ++i) {
    const bool between = messages[i - 1].role == Role::tool && messages[i + 1].role == Role::tool;
    if (between && instructs(messages[i])) std::swap(messages[i], messages[i + 1]);
  }
  const auto first = std::find_if_not(messages.begin(), messages.end(), instructs);
  std::vector<ChatMessage> kept(std::make_move_iterator(messages.begin()), std::make_move_iterator(first));
  bool waiting = false;  // the last turn is a reminder that belongs to the user's next words
  for (auto message = first; message != messages.end(); ++message) {
    const bool behind_user = !kept.empty() && kept.back().role == Role::user;
    if (message->role == Role::system) {
      if (message->content.empty()) continue;
      const std::string reminder = as_reminder(message->content);
      if (behind_user) {
        kept.back().content += "\n\n" + reminder;
      } else {
        kept.push_back({.role = Role::user, .content = reminder});
        waiting = true;
      }
      continue;
    }
    if (waiting && behind_user && message->role == Role::user) {
      kept.back().content += "\n\n" + message->content;
    } else {
      kept.push_back(std::move(*message));
      if (kept.back().role == Role::developer) kept.back().role = Role::user;
    }
    waiting = false;
  }
  messages = std::move(kept);
}

void complete_instructions(std::vector<ChatMessage>& messages) {
  if (!messages.empty() && std::all_of(messages.begin(), messages.end(), instructs)) {
    messages.emplace_back().role = Role::user;
  }
}

void reopen(std::vector<ChatMessage>& messages) {
  if (!messages.empty() && messages.back().role == Role::assistant) messages.emplace_back().role = Role::user;
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
