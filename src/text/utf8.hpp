// Reading and writing single UTF-8 code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ds4::text {

/// One character of a byte string. A byte that does not belong to well-formed UTF-8 (overlong forms,
/// surrogates and values above U+10FFFF included) is a character of length 1 with the value kInvalidByte.
struct CodePoint {
  char32_t value = 0;
  uint32_t length_bytes = 0;
};

inline constexpr char32_t kInvalidByte = 0xFFFFFFFF;

/// Precondition: position < text.size().
CodePoint code_point_at(std::string_view text, size_t position);

/// No byte of the text is a kInvalidByte.
bool is_utf8(std::string_view text);

/// Precondition: value is a Unicode scalar value.
void append_utf8(std::string& text, char32_t value);

/// Bytes that a character beginning with this byte should have; 1 for bytes that cannot begin one.
size_t utf8_length_from_lead(unsigned char lead);

/// How many bytes at the end of `text` belong to a character that is not complete yet.
size_t unfinished_utf8_bytes(std::string_view text);

}  // namespace ds4::text
