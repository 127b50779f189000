#include "prompt.hpp"

#include <fmt/format.h>

namespace ds4::eval {
namespace {

constexpr const char* benchmark_system =
    "You are solving a hard benchmark question. Reason carefully and follow the requested answer format "
    "exactly.";

/// What is asked for, and the form of the last line.
struct Closing {
  const char* task;
  const char* format;
};

Closing closing_of(AnswerKind kind) {
  switch (kind) {
    case AnswerKind::choice:
      return {"solve the question and ", "<letter>"};
    case AnswerKind::integer:
      return {"solve the problem and ", "<integer>"};
    case AnswerKind::line_set:
      return {"", "<line number or comma-separated line numbers>"};
    case AnswerKind::reduced_rational:
      return {"solve the problem, reduce the result and ", "<integer or reduced fraction>"};
    case AnswerKind::ordered_sequence:
      return {"put the answers in the requested order, separated by commas, and ", "<ordered answers>"};
    case AnswerKind::exact_text:
    case AnswerKind::tool_calls:
      break;
  }
  return {"", "<exact answer>"};
}

}  // namespace

std::string system_text(const Item& item) {
  return item.system.value_or(item.style == PromptStyle::bare ? "" : benchmark_system);
}

std::string question_text(const Item& item) {
  if (item.style == PromptStyle::bare) return item.question;
  std::string text = item.question + "\n";
  if (!item.choices.empty()) {
    text += "\nChoices:\n";
    for (size_t i = 0; i < item.choices.size(); ++i) {
      text += fmt::format("{}. {}\n", static_cast<char>('A' + i), item.choices[i]);
    }
  }
  const Closing closing = closing_of(item.kind);
  return text + fmt::format("\nThink it over, {}end with exactly one line in this format:\nAnswer: {}",
                            closing.task, closing.format);
}

ThinkMode think_mode(const Item& item, ThinkMode run) {
  if (!item.think) return run;
  if (!*item.think) return ThinkMode::none;
  return run == ThinkMode::none ? ThinkMode::high : run;
}

std::string_view think_name(ThinkMode mode) {
  switch (mode) {
    case ThinkMode::none:
      return "none";
    case ThinkMode::high:
      return "high";
    case ThinkMode::max:
      return "max";
    case ThinkMode::beyond:
      return "beyond";
  }
  return "";
}

std::vector<Token> prompt_tokens(const Item& item, ThinkMode run, const Tokenizer& tokenizer) {
  std::vector<ChatMessage> messages;
  if (const std::string system = system_text(item); !system.empty()) {
    messages.push_back({.role = Role::system, .content = system});
  }
  messages.push_back({.role = Role::user, .content = question_text(item)});
  ChatOptions options{.think = think_mode(item, run), .tool_schemas = item.tools};
  return render_chat(messages, options).encode(tokenizer);
}

}  // namespace ds4::eval
