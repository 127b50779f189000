#include "text/utf8.hpp"

namespace ds4::text {

size_t utf8_length_from_lead(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 1;
}

CodePoint code_point_at(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t length = utf8_length_from_lead(lead);
  if (length == 1 || text.size() - position < length) return {kInvalidByte, 1};
  char32_t value = lead & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {kInvalidByte, 1};
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (overlong || surrogate || value > 0x10FFFF) return {kInvalidByte, 1};
  return {value, static_cast<uint32_t>(length)};
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const CodePoint point = code_point_at(text, i);
    if (point.value == kInvalidByte) return false;
    i += point.length_bytes;
  }
  return true;
}

void append_utf8(std::string& text, char32_t value) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0 | value >> 6);
    put(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    put(0xE0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  } else {
    put(0xF0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3F));
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  }
}

size_t unfinished_utf8_bytes(std::string_view text) {
  constexpr size_t kLongestCharacterBytes = 4;
  for (size_t back = 1; back <= text.size() && back <= kLongestCharacterBytes + 1; ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    const bool continuation = (byte & 0xC0) == 0x80;
    if (!continuation) return utf8_length_from_lead(byte) > back ? back : 0;
  }
  return text.size() <= kLongestCharacterBytes ? text.size() : 0;
}

}  // namespace ds4::text
