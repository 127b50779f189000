// Files of prompts.
#pragma once

#include <string>
#include <vector>

#include "ds4/chat.hpp"
#include "ds4/error.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4::steer {

struct Prompt {
  std::string text;
  std::string expected;  // after a tab: what a right answer contains; empty: not asked
};

/// One prompt a line, without the spaces around it; empty lines and lines that begin with '#' are skipped. No
/// prompt at all is an error.
Result<std::vector<Prompt>> parse_prompts(const std::string& content, const std::string& name);
Result<std::vector<Prompt>> read_prompts(const std::string& path);

/// XXH3-128 of the texts, each ended by a line break, an empty line between the files; 32 hexadecimal digits.
std::string prompts_hash(const std::vector<Prompt>& good, const std::vector<Prompt>& bad);

/// A prompt as tokens, up to where the model speaks.
struct RenderedTokens {
  std::vector<Token> tokens;
  size_t message_begin = 0;  // index of the user tag
};
RenderedTokens render(const Tokenizer& tokenizer, const std::string& system, const std::string& message,
                      ThinkMode think);

/// Whether the answer contains the expected text with no letter or digit right before or after it, and not as
/// a part of a longer number ("5" is not in "-5", "1.5" or "5,000"); letters compare without case.
/// Precondition: something is expected.
bool contains_expected(const std::string& answer, const std::string& expected);

}  // namespace ds4::steer
