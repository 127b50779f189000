// Finding the answer in a reply (docs/eval.md §5).
#pragma once

#include <string>
#include <string_view>

#include "item.hpp"

namespace ds4::eval {

/// What stands for "no answer was found".
inline constexpr std::string_view no_answer = "?";

/// The text after the first `</think>`; the whole text if there is none.
std::string_view visible_part(std::string_view raw);

/// Where the answer is announced.
struct Marker {
  size_t begin = std::string_view::npos;  // of the word "answer"; npos: there is none
  size_t end = 0;                         // what follows begins here: after the colon, if there is one
  bool colon = false;                     // `answer:`; otherwise just the first mention
};
Marker find_marker(std::string_view visible);

/// Whether the last line that is not blank announces an answer and gives one.
bool has_final_line(std::string_view visible);

/// The answer of kind item.kind in a raw reply, at most max_answer_bytes on one line; no_answer if there is
/// none.
std::string extract_answer(const Item& item, std::string_view raw);

/// Single rules, on the visible part.
std::string extract_choice(std::string_view visible, size_t choices);
std::string extract_integer(std::string_view visible);
std::string extract_lines(std::string_view visible);
/// What follows the marker on its line; without a marker the last line that is not blank.
std::string extract_payload(std::string_view visible);
/// Calls in canonical form: `name{"argument":value,...}` with sorted names of arguments, joined by "; ".
std::string extract_tool_calls(std::string_view visible);
/// The canonical form of a JSON array of {"name": ..., "arguments": {...}}.
Result<std::string> canonical_tool_calls(std::string_view json);

}  // namespace ds4::eval
