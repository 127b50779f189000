// Finds and reads the block of tool calls in generated text (docs/chat.md §6).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "ds4/chat.hpp"

namespace ds4::text {

/// How the tags of a block are spelled. Models lose the first bar, or the whole sentinel, now and then; a
/// block keeps to one spelling.
struct DsmlStyle {
  std::string_view block_open, block_close;
  std::string_view invoke_open, invoke_close;  // the opening tags end before their attributes
  std::string_view parameter_open, parameter_close;
};

struct DsmlStart {
  size_t position = 0;  // of the two newlines before the tag, if they are there
  size_t body = 0;      // behind the tag
  const DsmlStyle* style = nullptr;
};

/// The block that counts at or after `from`: the first one of the best spelling, with two newlines before it
/// if one has them. `skip_reasoning`: blocks inside <think>...</think> do not count.
std::optional<DsmlStart> find_dsml_block(std::string_view text, size_t from, bool skip_reasoning);

struct DsmlBlock {
  std::vector<ToolCall> calls;
  size_t end = 0;  // behind the closing tag
};

/// Reads the calls; nothing if the block is cut off or breaks the rules.
std::optional<DsmlBlock> read_dsml_block(std::string_view text, const DsmlStart& start);

}  // namespace ds4::text
