#include "extract.hpp"

#include <algorithm>
#include <array>

#include "text_tools.hpp"

namespace ds4::eval {
namespace {

constexpr size_t choice_window = 96, number_window = 160;  // bytes after the marker
constexpr size_t longest_negation = 15;                    // letters
constexpr std::string_view typographic_apostrophe = "\xe2\x80\x99";

/// True if text[begin, end) has no letter beside it.
bool isolated(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_letter(text[begin - 1])) && (end >= text.size() || !is_letter(text[end]));
}

/// The word that ends just before `end`, after separators; its first byte is at or after `begin`. Empty if
/// there is none, or if it is too long to be a negation. `end` moves to its first byte.
std::string word_before(std::string_view text, size_t begin, size_t& end) {
  const auto separates = [](char c) { return is_blank(c) || c == ',' || c == ';'; };
  while (end > begin && separates(text[end - 1])) --end;
  const size_t last = end;
  while (end > begin && (is_letter(text[end - 1]) || text[end - 1] == '\'')) --end;
  if (last - end > longest_negation) return {};
  return lower(text.substr(end, last - end));
}

/// "not B", "rules out B", "isn't B": the letter at `position` is not the pick.
bool negated(std::string_view text, size_t begin, size_t position) {
  static constexpr auto words = std::to_array<std::string_view>(
      {"not", "except", "excluding", "exclude", "excludes", "eliminate", "eliminates", "eliminated", "reject",
       "rejects", "rejected", "rejecting"});
  size_t end = position;
  const std::string word = word_before(text, begin, end);
  if (word.ends_with("n't") || std::find(words.begin(), words.end(), word) != words.end()) return true;
  if (word != "out") return false;
  const std::string verb = word_before(text, begin, end);
  return verb == "rule" || verb == "rules" || verb == "ruled";
}

/// "I think", "A careful": a word of a sentence, not a pick.
bool prose(std::string_view text, size_t position) {
  size_t next = position + 1;
  if (next < text.size() && text[next] == '\'') return true;
  if (next >= text.size() || !is_blank(text[next])) return false;
  while (next < text.size() && is_blank(text[next])) ++next;
  return next < text.size() && text[next] >= 'a' && text[next] <= 'z';
}

/// The maximal run of digits that begins at `position`.
std::string_view digits_at(std::string_view text, size_t position) {
  size_t end = position;
  while (end < text.size() && is_digit(text[end])) ++end;
  return text.substr(position, end - position);
}

std::string_view first_digits(std::string_view text) {
  const auto found = std::find_if(text.begin(), text.end(), is_digit);
  return digits_at(text, static_cast<size_t>(found - text.begin()));
}

std::string_view last_digits(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_digit(text[end - 1])) --end;
  size_t begin = end;
  while (begin > 0 && is_digit(text[begin - 1])) --begin;
  return text.substr(begin, end - begin);
}

std::string without_leading_zeros(std::string_view digits) {
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return std::string(digits);
}

/// What follows the marker up to the end of its line, at most `limit` bytes.
std::string_view marker_line(std::string_view visible, size_t limit) {
  const Marker marker = find_marker(visible);
  if (marker.begin == std::string_view::npos) return {};
  const std::string_view rest = visible.substr(marker.end, limit);
  return rest.substr(0, rest.find('\n'));
}

/// The last line that is not blank.
std::string_view last_line(std::string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  const size_t newline = text.rfind('\n');
  return newline == std::string_view::npos ? text : text.substr(newline + 1);
}

std::string answer_or_none(std::string_view answer) {
  if (answer.empty()) return std::string(no_answer);
  return std::string(clip_bytes(answer, max_answer_bytes));
}

}  // namespace

std::string_view visible_part(std::string_view raw) {
  static constexpr std::string_view close = "</think>";
  const size_t found = raw.find(close);
  return found == std::string_view::npos ? raw : raw.substr(found + close.size());
}

Marker find_marker(std::string_view visible) {
  static constexpr std::string_view word = "answer";
  Marker result;
  for (size_t i = 0; i + word.size() <= visible.size(); ++i) {
    const auto matches = [](char a, char b) { return lower(a) == b; };
    if (!std::equal(word.begin(), word.end(), visible.begin() + static_cast<ptrdiff_t>(i),
                    [&](char b, char a) { return matches(a, b); })) {
      continue;
    }
    const size_t end = i + word.size();
    if (result.begin == std::string_view::npos) result = {i, end, false};
    if (!isolated(visible, i, end)) continue;
    size_t colon = end;
    while (colon < visible.size() && is_space(visible[colon])) ++colon;
    if (colon < visible.size() && visible[colon] == ':') result = {i, colon + 1, true};
  }
  return result;
}

bool has_final_line(std::string_view visible) {
  const std::string_view line = last_line(visible);
  const Marker marker = find_marker(line);
  if (!marker.colon) return false;
  const std::string_view payload = line.substr(marker.end);
  return std::any_of(payload.begin(), payload.end(), [](char c) {
    return is_letter(c) || is_digit(c) || static_cast<unsigned char>(c) >= 0x80;
  });
}

std::string extract_choice(std::string_view visible, size_t choices) {
  const std::string text = replace_all(visible, typographic_apostrophe, "'");
  const auto pick_at = [&](size_t i) {
    const char letter = upper(text[i]);
    const bool inside = letter >= 'A' && letter < static_cast<char>('A' + choices);
    return inside && isolated(text, i, i + 1) ? letter : '\0';
  };
  const Marker marker = find_marker(text);
  if (marker.begin != std::string_view::npos) {
    const size_t end = std::min(text.size(), marker.end + choice_window);
    for (size_t i = marker.end; i < end; ++i) {
      const char letter = pick_at(i);
      if (letter != '\0' && !prose(text, i) && !negated(text, marker.end, i)) return {letter};
    }
  }
  for (size_t i = text.size(); i-- > 0;) {
    if (const char letter = pick_at(i); letter != '\0') return {letter};
  }
  return std::string(no_answer);
}

std::string extract_integer(std::string_view visible) {
  const std::string_view line = marker_line(visible, number_window);
  std::string_view digits;
  if (const size_t equals = line.rfind('='); equals != std::string_view::npos) {
    digits = first_digits(line.substr(equals + 1));
  }
  if (digits.empty()) digits = first_digits(line);
  if (digits.empty()) digits = last_digits(visible);
  return answer_or_none(without_leading_zeros(digits));
}

std::string extract_lines(std::string_view visible) {
  const std::string_view line = marker_line(visible, number_window);
  const auto skip_blanks = [&](size_t i) {
    while (i < line.size() && is_blank(line[i])) ++i;
    return i;
  };
  std::string result;
  for (size_t i = 0; i < line.size();) {
    if (!is_digit(line[i])) {
      ++i;
      continue;
    }
    if (!result.empty()) result += ',';
    const std::string_view first = digits_at(line, i);
    result += first;
    i += first.size();
    const size_t dash = skip_blanks(i);
    if (dash >= line.size() || line[dash] != '-') continue;
    const std::string_view last = digits_at(line, skip_blanks(dash + 1));
    if (last.empty()) continue;
    result += '-';
    result += last;
    i = skip_blanks(dash + 1) + last.size();
  }
  return result.empty() ? extract_integer(visible) : answer_or_none(result);
}

std::string extract_payload(std::string_view visible) {
  const Marker marker = find_marker(visible);
  std::string answer;
  if (marker.colon) {
    const std::string_view rest = visible.substr(marker.end);
    answer = collapse(rest.substr(0, rest.find('\n')));
  }
  if (answer.empty()) answer = collapse(last_line(visible));
  return answer_or_none(answer);
}

std::string extract_answer(const Item& item, std::string_view raw) {
  const std::string_view visible = visible_part(raw);
  switch (item.kind) {
    case AnswerKind::choice:
      return extract_choice(visible, item.choices.size());
    case AnswerKind::integer:
      return extract_integer(visible);
    case AnswerKind::line_set:
      return extract_lines(visible);
    case AnswerKind::tool_calls:
      return extract_tool_calls(visible);
    case AnswerKind::reduced_rational:
    case AnswerKind::exact_text:
    case AnswerKind::ordered_sequence:
      break;
  }
  if (item.style == PromptStyle::bare) return answer_or_none(collapse(visible));
  return extract_payload(visible);
}

}  // namespace ds4::eval
