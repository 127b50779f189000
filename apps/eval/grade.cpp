#include "grade.hpp"

#include <algorithm>
#include <array>

#include "text_tools.hpp"

namespace ds4::eval {
namespace {

constexpr size_t most_lines = LineSet().size();

/// A decimal number with an optional sign at `position`, clamped to a line number; moves past it.
size_t read_line_number(std::string_view spec, size_t& position) {
  const bool negative = position < spec.size() && spec[position] == '-';
  if (negative) ++position;
  size_t value = 0;
  for (; position < spec.size() && is_digit(spec[position]); ++position) {
    value = std::min(most_lines - 1, value * 10 + static_cast<size_t>(spec[position] - '0'));
  }
  return negative ? 0 : value;
}

bool begins_number(std::string_view spec, size_t position) {
  if (position < spec.size() && spec[position] == '-') ++position;
  return position < spec.size() && is_digit(spec[position]);
}

bool lines_match(std::string_view key, std::string_view picked) {
  const LineSet expected = parse_line_set(key), given = parse_line_set(picked);
  return given.any() && expected.any() && (given & ~expected).none();
}

std::string same_number(std::string_view digits) {
  digits = trim(digits);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return std::string(digits);
}

bool matches(const Item& item, std::string_view key, std::string_view picked) {
  switch (item.kind) {
    case AnswerKind::choice:
      return !key.empty() && picked.substr(0, 1) == key.substr(0, 1);
    case AnswerKind::integer:
      return same_number(key) == same_number(picked);
    case AnswerKind::line_set:
      return lines_match(key, picked);
    case AnswerKind::reduced_rational:
      return normal_rational(key) == normal_rational(picked);
    case AnswerKind::exact_text:
      return normal_text(key) == normal_text(picked);
    case AnswerKind::ordered_sequence:
      return normal_sequence(key) == normal_sequence(picked);
    case AnswerKind::tool_calls:
      return key == picked;
  }
  return false;
}

void strip_trailing(std::string& text, std::string_view unwanted) {
  while (!text.empty() && unwanted.find(text.back()) != std::string_view::npos) text.pop_back();
}

/// `\frac{a}{b}` and its variants as `a/b`.
std::string plain_fractions(std::string_view text) {
  std::string result = replace_all(replace_all(text, "\\dfrac", "\\frac"), "\\tfrac", "\\frac");
  static constexpr std::string_view command = "\\frac{";
  for (size_t begin = result.find(command); begin != std::string::npos; begin = result.find(command)) {
    const size_t middle = result.find("}{", begin);
    const size_t end = middle == std::string::npos ? middle : result.find('}', middle + 2);
    if (end == std::string::npos) break;
    const size_t numerator = begin + command.size();
    result = result.substr(0, begin) + result.substr(numerator, middle - numerator) + "/" +
             result.substr(middle + 2, end - middle - 2) + result.substr(end + 1);
  }
  return result;
}

}  // namespace

LineSet parse_line_set(std::string_view spec) {
  LineSet lines;
  for (size_t i = 0; i < spec.size();) {
    if (!begins_number(spec, i)) {
      ++i;
      continue;
    }
    size_t first = read_line_number(spec, i);
    size_t last = first;
    while (i < spec.size() && is_blank(spec[i])) ++i;
    if (i < spec.size() && spec[i] == '-') {
      size_t after = i + 1;
      while (after < spec.size() && is_blank(spec[after])) ++after;
      if (begins_number(spec, after)) {
        last = read_line_number(spec, after);
        i = after;
      } else {
        ++i;
      }
    }
    if (first > last) std::swap(first, last);
    for (size_t line = first; line <= last; ++line) lines.set(line);
  }
  return lines;
}

std::string normal_rational(std::string_view text) {
  std::string result;
  for (const char c : plain_fractions(text)) {
    if (is_digit(c) || c == '-' || c == '+' || c == '.' || c == '/') result += c;
  }
  strip_trailing(result, ".");
  return result;
}

std::string normal_text(std::string_view text) {
  static constexpr auto dropped = std::to_array<std::string_view>({"\\boxed", "\\left", "\\right"});
  std::string without_commands(text);
  for (const std::string_view command : dropped)
    without_commands = replace_all(without_commands, command, "");
  std::string result;
  for (const char c : without_commands) {
    if (!is_space(c) && std::string_view("$*{}").find(c) == std::string_view::npos) result += lower(c);
  }
  strip_trailing(result, ".;");
  return result;
}

std::string normal_sequence(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const size_t close = c == '<' ? text.find('>', i) : std::string_view::npos;
    if (close != std::string_view::npos) {
      i = close;
    } else if (is_letter(c) || is_digit(c) || static_cast<unsigned char>(c) >= 0x80 ||
               std::string_view(",+-/.").find(c) != std::string_view::npos) {
      result += lower(c);
    }
  }
  strip_trailing(result, ".,");
  return result;
}

bool is_correct(const Item& item, std::string_view picked) {
  if (picked.empty() || picked == no_answer) return false;
  return matches(item, item.answer, picked) ||
         std::any_of(item.aliases.begin(), item.aliases.end(),
                     [&](const std::string& alias) { return matches(item, alias, picked); });
}

Grade grade_old_reply(const Item& item, std::string_view raw) {
  Grade grade;
  grade.picked = extract_answer(item, raw);
  grade.verdict = is_correct(item, grade.picked) ? Verdict::passed : Verdict::failed;
  return grade;
}

Grade grade_reply(const Item& item, std::string_view raw) {
  const std::string_view visible = visible_part(raw);
  const bool complete = item.style == PromptStyle::bare ? !trim(visible).empty() : has_final_line(visible);
  Grade grade = grade_old_reply(item, raw);
  if (!complete) grade.verdict = Verdict::incomplete;
  return grade;
}

}  // namespace ds4::eval
