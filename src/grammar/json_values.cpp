#include "grammar/json_values.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/json_text.hpp"

namespace ds4::grammar {
namespace {

namespace json = boost::json;

std::string number_text(double number) {
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  return {buffer.data(), end.ptr};
}

}  // namespace

std::string canonical_json(const json::value& value) {
  switch (value.kind()) {
    case json::kind::object: {
      std::string text = "{";
      for (const auto& member : value.get_object()) {
        if (text.size() > 1) text.push_back(',');
        text.append(text::json_quote(member.key())).append(":").append(canonical_json(member.value()));
      }
      return text.append("}");
    }
    case json::kind::array: {
      std::string text = "[";
      for (const json::value& item : value.get_array()) {
        if (text.size() > 1) text.push_back(',');
        text.append(canonical_json(item));
      }
      return text.append("]");
    }
    case json::kind::string:
      return text::json_quote(value.get_string());
    case json::kind::double_:
      return number_text(value.get_double());
    default:
      return json::serialize(value);
  }
}

std::optional<std::string> decimal_text(const json::value& number) {
  if (!number.is_double()) return json::serialize(number);
  if (!std::isfinite(number.get_double())) return std::nullopt;
  std::array<char, 1100> buffer{};  // the smallest double has 1,074 digits behind the point
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number.get_double(),
                                 std::chars_format::fixed);
  return std::string(buffer.data(), end.ptr);
}

unsigned type_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return kNull;
    case json::kind::bool_:
      return kBoolean;
    case json::kind::int64:
    case json::kind::uint64:
      return kInteger;
    case json::kind::double_:
      return value.get_double() == std::floor(value.get_double()) ? kInteger : kNumber;
    case json::kind::string:
      return kString;
    case json::kind::array:
      return kArray;
    default:
      return kObject;
  }
}

size_t character_count(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(
      utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::optional<Dfa> strings_of(const Branch& branch) {
  if ((branch.types & kString) == 0) return Dfa{};
  if (branch.values) {
    std::vector<std::string> texts;
    for (const json::value& value : *branch.values) {
      if (value.is_string()) texts.emplace_back(value.get_string());
    }
    return one_of(texts);
  }
  std::optional<Dfa> strings = any_string();
  for (const auto& set : branch.string_sets) {
    if (strings) strings = intersect(*strings, *set);
  }
  if (branch.least_length == 0 && branch.most_length == kUnlimited) return strings;
  const auto lengths = of_length(branch.least_length, branch.most_length);
  if (!strings || !lengths) return std::nullopt;
  return intersect(*strings, *lengths);
}

}  // namespace ds4::grammar
