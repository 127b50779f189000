// The part of a system text that describes the tools (docs/chat.md §4).
#pragma once

#include <string>
#include <vector>

#include "text/prompt_builder.hpp"

namespace ds4::text {

/// Writes nothing for an empty list. The explanation is trusted: the tags it mentions are tokens for the
/// model. The schemas are not.
void append_tools_section(PromptBuilder& prompt, const std::vector<std::string>& tool_schemas);

}  // namespace ds4::text
