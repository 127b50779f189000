// The markup of tool calls: how it is spelled and written (docs/chat.md §5).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/prompt_builder.hpp"

namespace ds4::text {

/// Ends a parameter. Inside a value it is written with its first character escaped.
inline constexpr std::string_view kParameterEnd = "</｜DSML｜parameter>";
inline constexpr std::string_view kEscapedParameterEnd = "&lt;/｜DSML｜parameter>";

/// A name as it stands between quotes: `&`, `<`, `>` and `"` as entities.
std::string escape_attribute(std::string_view text);

/// Writes the block of these calls in canonical form, nothing for an empty list. Tags are trusted; names and
/// values are not.
void append_tool_calls(PromptBuilder& prompt, const std::vector<ToolCall>& calls);

}  // namespace ds4::text
