#include "text_lines.hpp"

namespace ds4::quantize {

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view mark = "\xef\xbb\xbf";
  if (text.starts_with(mark)) text.remove_prefix(mark.size());
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<TextLine> content_lines(std::string_view text) {
  std::vector<TextLine> lines;
  size_t number = 0;
  for (std::string_view line : split(without_byte_order_mark(text), '\n')) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !line.starts_with('#')) lines.push_back({number, line});
  }
  return lines;
}

}  // namespace ds4::quantize
