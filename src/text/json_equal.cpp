#include "text/json_equal.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "text/json_text.hpp"

namespace ds4::text {
namespace {

constexpr int most_depth = 64;

/// Precondition: `array` is a well-formed array, without white space around it.
std::vector<std::string_view> elements_of(std::string_view array) {
  std::vector<std::string_view> elements;
  size_t at = skip_white_space(array, 1);
  while (array[at] != ']') {
    const size_t end = json_value_end(array, at).value_or(array.size() - 1);
    elements.push_back(array.substr(at, end - at));
    at = skip_white_space(array, end);
    if (array[at] == ',') at = skip_white_space(array, at + 1);
  }
  return elements;
}

bool is_number(std::string_view value) {
  return value.front() == '-' || (value.front() >= '0' && value.front() <= '9');
}

/// Precondition: well-formed values without white space around them.
bool equal(std::string_view a, std::string_view b, int depth) {
  if (a == b) return true;
  if (is_number(a) && is_number(b)) {
    return std::strtod(std::string(a).c_str(), nullptr) == std::strtod(std::string(b).c_str(), nullptr);
  }
  if (a.front() != b.front()) return false;
  if (a.front() == '"') return json_unquote(a) == json_unquote(b);
  if (depth == most_depth) return json_minify(a) == json_minify(b);
  if (a.front() == '[') {
    const auto left = elements_of(a), right = elements_of(b);
    return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                      [&](std::string_view x, std::string_view y) { return equal(x, y, depth + 1); });
  }
  if (a.front() != '{') return false;
  auto left = json_object_members(a).value_or(std::vector<JsonMember>()),
       right = json_object_members(b).value_or(std::vector<JsonMember>());
  const auto by_key = [](const JsonMember& x, const JsonMember& y) { return x.key < y.key; };
  std::stable_sort(left.begin(), left.end(), by_key);
  std::stable_sort(right.begin(), right.end(), by_key);
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [&](const JsonMember& x, const JsonMember& y) {
                      return x.key == y.key && equal(x.value, y.value, depth + 1);
                    });
}

/// Without white space around it; empty if it is no value.
std::string_view value_in(std::string_view text) {
  const size_t begin = skip_white_space(text, 0);
  const auto end = json_value_end(text, begin);
  if (!end || skip_white_space(text, *end) != text.size()) return {};
  return text.substr(begin, *end - begin);
}

}  // namespace

bool json_equal(std::string_view a, std::string_view b) {
  const std::string_view left = value_in(a), right = value_in(b);
  return !left.empty() && !right.empty() && equal(left, right, 0);
}

}  // namespace ds4::text
