#include "prompt.hpp"

#include <unistd.h>

#include "base/error.hpp"
#include "common/console.hpp"

namespace ds4::cli {

Result<std::optional<std::string>> read_prompt(const Options& options) {
  std::string text;
  switch (options.prompt_source) {
    case PromptSource::text:
      return std::optional(options.prompt);
    case PromptSource::file: {
      DS4_ASSIGN(text, read_file(options.prompt));
      if (text.empty())
        return fail(ErrorCode::invalid_argument, "the prompt file {} is empty", options.prompt);
      return std::optional(std::move(text));
    }
    case PromptSource::none:
      if (isatty(STDIN_FILENO) == 1) return std::optional<std::string>();
      break;
    case PromptSource::standard_input:
      break;
  }
  DS4_ASSIGN(text, read_all(STDIN_FILENO, "standard input"));
  // `echo hi | ds4`: the line break belongs to echo, not to the prompt.
  if (text.ends_with('\n')) text.pop_back();
  if (text.empty()) {
    return fail(ErrorCode::invalid_argument,
                "no prompt: standard input is empty; give one with -p or --prompt-file");
  }
  return std::optional(std::move(text));
}

std::vector<Token> preamble_tokens(const Tokenizer& tokenizer, const std::string& system,
                                   const std::vector<std::string>& tool_schemas, ThinkMode think) {
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({.role = Role::system, .content = system});
  return render_chat(messages, {.think = think, .tool_schemas = tool_schemas}).encode(tokenizer);
}

std::vector<Token> message_tokens(const Tokenizer& tokenizer, const std::string& message, ThinkMode think) {
  const SpecialTokens& special = tokenizer.special();
  std::vector<Token> tokens{special.user};
  const std::vector<Token> text = tokenizer.encode_plain(message);
  tokens.insert(tokens.end(), text.begin(), text.end());
  tokens.push_back(special.assistant);
  tokens.push_back(think == ThinkMode::none ? special.think_close : special.think_open);
  return tokens;
}

}  // namespace ds4::cli
