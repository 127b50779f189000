// For tests: the golden conversations of tests/data/chat-cases.json.
#pragma once

#include <string>
#include <vector>

#include "ds4/chat.hpp"
#include "text/test_vocabulary.hpp"

namespace ds4::text {

struct ChatCase {
  std::string name;
  std::vector<ChatMessage> messages;
  ChatOptions options;
  std::string rendered;
  std::vector<Token> ids;  // of the real vocabulary
};

inline ChatMessage chat_case_message(const boost::json::value& json) {
  ChatMessage message;
  const std::string_view role = json.at("role").as_string();
  message.role = role == "system"      ? Role::system
                 : role == "developer" ? Role::developer
                 : role == "assistant" ? Role::assistant
                 : role == "tool"      ? Role::tool
                                       : Role::user;
  message.content = json.at("content").as_string();
  if (const auto* reasoning = json.as_object().if_contains("reasoning"))
    message.reasoning = reasoning->as_string();
  if (const auto* calls = json.as_object().if_contains("calls")) {
    for (const auto& call : calls->as_array()) {
      message.tool_calls.push_back(
          {"", std::string(call.as_array()[0].as_string()), std::string(call.as_array()[1].as_string())});
    }
  }
  return message;
}

inline std::vector<ChatCase> chat_cases() {
  std::vector<ChatCase> cases;
  const auto file = read_json_file(test_data("chat-cases.json"));
  if (!file.is_object()) return cases;
  for (const auto& json : file.at("cases").as_array()) {
    ChatCase& entry = cases.emplace_back();
    entry.name = json.at("name").as_string();
    for (const auto& message : json.at("messages").as_array())
      entry.messages.push_back(chat_case_message(message));
    const std::string_view mode = json.at("mode").as_string();
    entry.options.think = mode == "none" ? ThinkMode::none : mode == "max" ? ThinkMode::max : ThinkMode::high;
    std::string schemas(json.at("tool_schemas").as_string());
    for (size_t begin = 0; begin < schemas.size();) {
      const size_t end = std::min(schemas.find('\n', begin), schemas.size());
      entry.options.tool_schemas.push_back(schemas.substr(begin, end - begin));
      begin = end + 1;
    }
    entry.rendered = json.at("rendered").as_string();
    entry.ids = token_list(json.at("ids"));
  }
  return cases;
}

}  // namespace ds4::text
