// For tests: messages as lines of text.
#pragma once

#include <string>
#include <vector>

#include "ds4/chat.hpp"

namespace ds4::server::api {

/// "role(call it answers): <reasoning>content id=name{arguments}" of every message.
inline std::vector<std::string> shown(const std::vector<ChatMessage>& messages) {
  constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  std::vector<std::string> lines;
  for (const ChatMessage& message : messages) {
    std::string line = kRoles[static_cast<int>(message.role)];
    if (!message.tool_call_id.empty()) line += "(" + message.tool_call_id + ")";
    line += ": ";
    if (!message.reasoning.empty()) line += "<" + message.reasoning + ">";
    line += message.content;
    for (const ToolCall& call : message.tool_calls) line += " " + call.id + "=" + call.name + call.arguments;
    lines.push_back(line);
  }
  return lines;
}

}  // namespace ds4::server::api
