// Texts of lines and fields, as lists and manifests are.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace ds4::quantize {

/// `text` without the mark that editors of some systems put in front of UTF-8.
std::string_view without_byte_order_mark(std::string_view text);

/// What stands between the separators, one part more than there are of them.
std::vector<std::string_view> split(std::string_view text, char separator);

struct TextLine {
  size_t number = 0;  // from 1
  std::string_view text;
};
/// The lines that hold something, without the ends of any system; "#" at their begin makes them a comment.
std::vector<TextLine> content_lines(std::string_view text);

}  // namespace ds4::quantize
