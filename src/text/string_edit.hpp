// Replacing one literal by another.
#pragma once

#include <string>
#include <string_view>

namespace ds4::text {

/// Every occurrence of `from` becomes `to`, from left to right; results are not searched again.
inline std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  size_t begin = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, begin)) {
    result.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  return result.append(text, begin);
}

}  // namespace ds4::text
