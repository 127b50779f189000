#include "base/quote.hpp"

#include <cstddef>

namespace ds4 {

std::string quote(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  constexpr char kDigits[] = "0123456789abcdef";
  const bool cut = text.size() > kMaxBytes;
  std::string result = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += "\\x";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    }
  }
  result += cut ? "...\"" : "\"";
  return result;
}

}  // namespace ds4
