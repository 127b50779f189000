#include "common/calibration_set.hpp"

#include <algorithm>

namespace ds4::cli {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

/// Where a line that begins with the marker starts, from `begin` (the start of a line) on.
size_t find_marker(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    if (text.substr(begin).starts_with(calibration_marker)) return begin;
    const size_t line_break = text.find('\n', begin);
    if (line_break == std::string_view::npos) break;
    begin = line_break + 1;
  }
  return std::string_view::npos;
}

}  // namespace

std::vector<std::string_view> calibration_prompts(std::string_view text) {
  std::vector<std::string_view> prompts;
  const auto add = [&](std::string_view prompt) {
    prompt = trimmed(prompt);
    if (!prompt.empty()) prompts.push_back(prompt);
  };
  size_t marker = find_marker(text, 0);
  if (marker == std::string_view::npos) add(text);
  while (marker != std::string_view::npos) {
    const size_t begin = std::min(text.find('\n', marker), text.size());
    marker = find_marker(text, std::min(begin + 1, text.size()));
    add(text.substr(begin, std::min(marker, text.size()) - begin));
  }
  return prompts;
}

}  // namespace ds4::cli
