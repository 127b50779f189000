// Rules for conversations that APIs with items and blocks share.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/chat.hpp"
#include "server/api/json_fields.hpp"
#include "server/generation.hpp"
#include "server/http/message.hpp"

namespace ds4::server::api {

/// Appends `text` to a joined text: with a line end between the two unless there is one.
void append_line(std::string& joined, std::string_view text);

/// System and developer messages after the beginning of the conversation stay where they are: the renderer
/// would move them into the system region, and everything behind it would have to be computed anew. Developer
/// messages become user turns, as in the official encoding. System messages become a paragraph, marked as a
/// reminder, of the user's words next to them, before all of those behind them; of their own turn where there
/// are none.
void keep_late_instructions_in_place(std::vector<ChatMessage>& messages);

/// What leaves the model something to answer: an empty turn of the user behind a conversation of instructions
/// alone.
void complete_instructions(std::vector<ChatMessage>& messages);

/// A conversation that ends with the assistant gets an empty turn of the user, so that it is answered: agents
/// put words into the assistant's mouth when it is to come to an end.
void reopen(std::vector<ChatMessage>& messages);

/// The id of the first tool result that answers no call before it.
std::optional<std::string> unanswerable_result(const std::vector<ChatMessage>& messages);

/// Headers that say what was applied: reasoning, and the kinds of tools that were left out because only the
/// original service can run them.
http::HeaderList applied_headers(const Thinking& thinking, const std::vector<std::string>& ignored_tools);

/// Adds a kind of tool to those left out.
void ignore_tool(std::vector<std::string>& ignored_tools, std::string_view type);

}  // namespace ds4::server::api
