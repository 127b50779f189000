// What a KVC file's map of tool calls says about the replies in its state (docs/formats.md §14.1).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ds4/chat.hpp"
#include "ds4/token.hpp"
#include "ds4/tokenizer.hpp"
#include "store/kvc_file.hpp"

namespace ds4::store {

/// A reply with tool calls, and the ids that clients know these by.
struct KvcReply {
  std::vector<std::string> ids;
  std::shared_ptr<const SampledReply> reply;
};

/// The replies among `tokens` whose block of calls is in the map, with or without the white space before it.
/// The map has blocks alone; reasoning, content and special tokens come from the state's tokens. Of several
/// replies with the same block the last one counts.
std::vector<KvcReply> replies_of_tools(std::span<const Token> tokens, const Tokenizer& tokenizer,
                                       std::span<const KvcTool> tools);

}  // namespace ds4::store
