#include "item.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.hpp"
#include "extract.hpp"
#include "grade.hpp"
#include "text_tools.hpp"

namespace ds4::eval {
namespace {

constexpr auto kinds = std::to_array<std::pair<AnswerKind, std::string_view>>({
    {AnswerKind::choice, "choice"},
    {AnswerKind::integer, "integer"},
    {AnswerKind::line_set, "security_line_set"},
    {AnswerKind::reduced_rational, "reduced_rational"},
    {AnswerKind::exact_text, "exact_text"},
    {AnswerKind::ordered_sequence, "ordered_sequence"},
    {AnswerKind::tool_calls, "tool_calls"},
});

/// What is wrong with a key, or an empty text.
std::string complaint_about_key(const Item& item, std::string_view key) {
  if (key.empty() || key.size() > max_answer_bytes) return fmt::format("has a key of {} bytes", key.size());
  switch (item.kind) {
    case AnswerKind::choice:
      if (key.size() == 1 && key[0] >= 'A' && key[0] < static_cast<char>('A' + item.choices.size()))
        return {};
      return fmt::format("has the key '{}' and {} choices", key, item.choices.size());
    case AnswerKind::integer:
      if (std::all_of(key.begin(), key.end(), is_digit)) return {};
      return fmt::format("has the key '{}', not a whole number", key);
    case AnswerKind::line_set:
      if (parse_line_set(key).any() && key.find_first_not_of("0123456789,-") == std::string_view::npos)
        return {};
      return fmt::format("has the key '{}', not line numbers", key);
    case AnswerKind::reduced_rational:
      if (normal_rational(key) == key) return {};
      return fmt::format("has the key '{}', not a plain fraction", key);
    case AnswerKind::exact_text:
      return normal_text(key).empty() ? "has a key of punctuation alone" : "";
    case AnswerKind::ordered_sequence:
      return normal_sequence(key).empty() ? "has a key of punctuation alone" : "";
    case AnswerKind::tool_calls:
      return item.tools.empty() ? "expects a tool call and offers no tools" : "";
  }
  return {};
}

std::string complaint(const Item& item) {
  if (item.source.empty() || item.id.empty()) return "needs a source and an id";
  const auto one_line = [](const std::string& text) {
    return std::none_of(text.begin(), text.end(),
                        [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  };
  if (!one_line(item.source) || !one_line(item.id) || !one_line(item.domain) || !one_line(item.title)) {
    return "has a line break or control character in its source, id, domain or title";
  }
  if (item.id.find(' ') != std::string::npos) return "has a space in its id";
  if (trim(item.question).empty()) return "has no question";
  if (item.choices.size() > max_choices) {
    return fmt::format("has {} choices; {} are possible", item.choices.size(), max_choices);
  }
  if ((item.kind == AnswerKind::choice) != !item.choices.empty())
    return "needs choices exactly if it is a choice";
  if (item.kind == AnswerKind::choice && item.choices.size() < 2) return "has one choice only";
  for (size_t i = 0; i < item.choices.size(); ++i) {
    if (trim(item.choices[i]).empty()) return "has an empty choice";
    for (size_t j = 0; j < i; ++j) {
      if (collapse(item.choices[i]) == collapse(item.choices[j])) return "has the same choice twice";
    }
  }
  if (std::string text = complaint_about_key(item, item.answer); !text.empty()) return text;
  for (const std::string& alias : item.aliases) {
    if (std::string text = complaint_about_key(item, alias); !text.empty()) return text;
  }
  return {};
}

}  // namespace

std::string_view kind_name(AnswerKind kind) {
  for (const auto& [value, name] : kinds) {
    if (value == kind) return name;
  }
  return "";
}

Result<AnswerKind> parse_kind(std::string_view name, const Item& item) {
  if (name.empty() || name == "auto") {
    if (!item.choices.empty()) return AnswerKind::choice;
    return item.source == "COMPSEC" ? AnswerKind::line_set : AnswerKind::integer;
  }
  for (const auto& [value, known] : kinds) {
    if (known == name) return value;
  }
  return fail(ErrorCode::format, "there is no answer kind '{}'", name);
}

Result<void> validate(const Item& item) {
  const std::string text = complaint(item);
  if (!text.empty()) return fail(ErrorCode::format, "{}/{} {}", item.source, item.id, text);
  return {};
}

}  // namespace ds4::eval
