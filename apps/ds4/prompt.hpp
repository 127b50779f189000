// From the user's text to the tokens of a prompt.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ds4/chat.hpp"
#include "ds4/error.hpp"
#include "ds4/tokenizer.hpp"
#include "options.hpp"

namespace ds4::cli {

/// The prompt text the options ask for; nothing if a conversation is wanted. Standard input counts as a whole
/// when it was asked for, or when it is not a terminal and nothing else was given. Every error is one of
/// usage.
Result<std::optional<std::string>> read_prompt(const Options& options);

/// What stands before the first message: BOS, effort, tools, system text.
std::vector<Token> preamble_tokens(const Tokenizer& tokenizer, const std::string& system,
                                   const std::vector<std::string>& tool_schemas, ThinkMode think);
/// A user's message and the beginning of the answer to it.
std::vector<Token> message_tokens(const Tokenizer& tokenizer, const std::string& message, ThinkMode think);

}  // namespace ds4::cli
