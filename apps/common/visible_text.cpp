#include "common/visible_text.hpp"

namespace ds4::cli {

Decoded decode_at(std::string_view text, size_t position) {
  const auto byte = static_cast<unsigned char>(text[position]);
  if (byte < 0x80) return {byte, 1};
  Decoded result;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + position,
                                       static_cast<utf8proc_ssize_t>(text.size() - position), &result.value);
  if (length <= 0) return {};
  result.bytes = static_cast<size_t>(length);
  return result;
}

bool is_control(utf8proc_int32_t value) {
  return (value >= 0 && value < 0x20) || (value >= 0x7f && value < 0xa0);
}

std::string visible(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Decoded c = decode_at(text, i);
    if (c.value < 0) {
      out += "\xef\xbf\xbd";
    } else if (!is_control(c.value) || kept.find(text[i]) != std::string_view::npos) {
      out += text.substr(i, c.bytes);
    } else if (c.value < 0x20) {
      out += '^';
      out += static_cast<char>(c.value ^ 0x40);
    } else {
      out += "^?";
    }
    i += c.bytes;
  }
  return out;
}

}  // namespace ds4::cli
