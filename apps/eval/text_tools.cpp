#include "text_tools.hpp"

namespace ds4::eval {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = lower(c);
  return result;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string collapse(std::string_view text) {
  std::string result;
  for (const char c : trim(text)) {
    if (!is_space(c)) {
      result += c;
    } else if (result.back() != ' ') {
      result += ' ';
    }
  }
  return result;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (size_t begin = 0;;) {
    const size_t found = text.find(from, begin);
    result += text.substr(begin, found - begin);
    if (found == std::string_view::npos) return result;
    result += to;
    begin = found + from.size();
  }
}

std::string_view clip_bytes(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

}  // namespace ds4::eval
