// ASCII helpers of extraction and grading. Bytes of other characters are never letters, digits or spaces.
#pragma once

#include <string>
#include <string_view>

namespace ds4::eval {

constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
constexpr bool is_blank(char c) {
  return c == ' ' || c == '\t';
}
constexpr char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}
constexpr char upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - ('a' - 'A')) : c;
}

std::string lower(std::string_view text);
std::string_view trim(std::string_view text);
/// Runs of white space as one space, none at the ends.
std::string collapse(std::string_view text);
/// Every `from` as `to`. Precondition: `from` is not empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
/// At most `bytes` bytes, without half a UTF-8 character at the end.
std::string_view clip_bytes(std::string_view text, size_t bytes);

}  // namespace ds4::eval
