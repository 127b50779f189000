// One question of a suite: what is asked, and what counts as right (docs/eval.md §2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"

namespace ds4::eval {

enum class AnswerKind {
  choice,            // a letter
  integer,           // a whole number without sign
  line_set,          // numbers of source lines
  reduced_rational,  // a whole number or a reduced fraction
  exact_text,        // text, apart from spaces, case and mathematical dressing
  ordered_sequence,  // values separated by commas
  tool_calls,        // calls of the offered tools
};

/// What is put around the question.
enum class PromptStyle {
  benchmark,  // the choices, and a closing instruction that asks for a final line `Answer: ...`
  bare,       // nothing: the whole visible reply is the answer
};

inline constexpr size_t max_choices = 10;
inline constexpr size_t max_answer_bytes = 255;

struct Item {
  std::string source, id;  // together unique
  std::string domain, title;
  std::string question;
  std::vector<std::string> choices;  // at most max_choices
  AnswerKind kind = AnswerKind::integer;
  std::string answer;                // tool_calls: in canonical form (extract.hpp)
  std::vector<std::string> aliases;  // accepted as well
  std::string solution;              // worked, for people
  std::string check;                 // how the key was checked a second time
  PromptStyle style = PromptStyle::benchmark;
  std::optional<std::string> system;  // instead of the fixed text
  std::vector<std::string> tools;     // JSON schemas that are offered
  std::optional<bool> think;          // instead of the mode of the run
  uint64_t max_tokens = 0;            // 0: as the run says

  /// "source/id"
  std::string name() const { return source + "/" + id; }
  bool operator==(const Item&) const = default;
};

/// "choice", "integer", "security_line_set", ...
std::string_view kind_name(AnswerKind kind);
/// The kind of that name. "" and "auto" follow from the item: with choices a choice, of source COMPSEC a line
/// set, else an integer.
Result<AnswerKind> parse_kind(std::string_view name, const Item& item);

/// What an author can get wrong in an item: nothing, or one sentence that begins with its name.
Result<void> validate(const Item& item);

}  // namespace ds4::eval
