#include "server/api/json_fields.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "text/utf8.hpp"

namespace ds4::server::api {
namespace {

constexpr size_t kDeepestNesting = 256;
// Every value costs a few times its text while an object is read; a long conversation has some 10,000.
constexpr size_t kMostValues = size_t{1} << 21;

/// Why the text is refused before it is read as JSON, or nothing.
const char* refusal_by_size(std::string_view text) {
  size_t depth = 0;
  size_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDeepestNesting) return "is nested deeper than 256 levels";
    } else if (c == '}' || c == ']') {
      if (depth <= 1) break;
      --depth;
    } else if (c == ',' && ++values > kMostValues) {
      return "has too many values";
    }
  }
  return nullptr;
}

std::optional<double> to_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> to_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  constexpr double kExact = 9007199254740992.0;  // 2^53: doubles up to here are the integer that was written
  const auto number = to_number(text);
  if (!number || std::floor(*number) != *number || std::abs(*number) > kExact) return std::nullopt;
  return static_cast<int64_t>(*number);
}

}  // namespace

JsonValue::Kind JsonValue::kind() const {
  switch (text_.front()) {
    case 'n':
      return Kind::null;
    case 't':
    case 'f':
      return Kind::boolean;
    case '"':
      return Kind::string;
    case '[':
      return Kind::array;
    case '{':
      return Kind::object;
    default:
      return Kind::number;
  }
}

std::vector<JsonValue> JsonValue::elements() const {
  std::vector<JsonValue> values;
  size_t i = text::skip_white_space(text_, 1);
  while (text_[i] != ']') {
    const size_t end = *text::json_value_end(text_, i);
    values.emplace_back(text_.substr(i, end - i));
    i = text::skip_white_space(text_, end);
    if (text_[i] == ',') i = text::skip_white_space(text_, i + 1);
  }
  return values;
}

std::vector<text::JsonMember> JsonValue::members() const {
  return text::json_object_members(text_).value_or(std::vector<text::JsonMember>{});
}

void FieldErrors::add(std::string param, std::string message, std::string code) {
  if (first_) return;
  first_.emplace();
  first_->param = std::move(param);
  first_->message = std::move(message);
  first_->code = std::move(code);
}

std::optional<JsonValue> parse_body(std::string_view body, FieldErrors& errors) {
  const auto refuse = [&](std::string_view why) {
    errors.add("", fmt::format("invalid JSON request: the body {}", why), "invalid_json");
    return std::nullopt;
  };
  const size_t begin = text::skip_white_space(body, 0);
  if (begin >= body.size() || body[begin] != '{') return refuse("is not a JSON object");
  if (const char* why = refusal_by_size(body.substr(begin))) return refuse(why);
  const auto end = text::json_value_end(body, begin);
  if (!end) return refuse("is not well-formed JSON");
  const std::string_view text = body.substr(begin, *end - begin);
  if (!text::is_utf8(text)) return refuse("is not valid UTF-8");
  return JsonValue(text);
}

Fields::Fields(const JsonValue& object, std::string path, FieldErrors& errors)
    : members_(object.members()), path_(std::move(path)), errors_(&errors) {}

std::optional<JsonValue> Fields::find(std::string_view name) const {
  const auto index = position(name);
  if (!index || members_[*index].value == "null") return std::nullopt;
  return JsonValue(members_[*index].value);
}

std::optional<size_t> Fields::position(std::string_view name) const {
  for (size_t i = members_.size(); i-- > 0;) {
    if (members_[i].key == name) return i;
  }
  return std::nullopt;
}

std::string Fields::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

std::optional<JsonValue> Fields::find_kind(std::string_view name, JsonValue::Kind kind,
                                           std::string_view expected) const {
  auto value = find(name);
  if (!value || value->is(kind)) return value;
  wrong_type(name, expected);
  return std::nullopt;
}

std::optional<bool> Fields::boolean(std::string_view name) const {
  const auto value = find_kind(name, JsonValue::Kind::boolean, "true or false");
  if (!value) return std::nullopt;
  return value->boolean();
}

std::optional<std::string> Fields::string(std::string_view name) const {
  const auto value = find_kind(name, JsonValue::Kind::string, "a string");
  if (!value) return std::nullopt;
  return value->string();
}

std::optional<double> Fields::number(std::string_view name, double least, double most) const {
  const auto value = find_kind(name, JsonValue::Kind::number, "a number");
  if (!value) return std::nullopt;
  const auto number = to_number(value->text());
  if (number && *number >= least && *number <= most) return number;
  wrong_value(name, fmt::format("must be between {} and {}", least, most));
  return std::nullopt;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t least, int64_t most) const {
  const auto value = find_kind(name, JsonValue::Kind::number, "an integer");
  if (!value) return std::nullopt;
  const auto number = to_integer(value->text());
  if (number && *number >= least && *number <= most) return number;
  wrong_value(name, fmt::format("must be an integer between {} and {}", least, most));
  return std::nullopt;
}

std::optional<size_t> Fields::count(std::string_view name, size_t least, size_t most) const {
  const auto value = integer(name, static_cast<int64_t>(least), static_cast<int64_t>(most));
  if (!value) return std::nullopt;
  return static_cast<size_t>(*value);
}

std::optional<Fields> Fields::object(std::string_view name) const {
  const auto value = find_kind(name, JsonValue::Kind::object, "an object");
  if (!value) return std::nullopt;
  return Fields(*value, path_of(name), *errors_);
}

std::optional<std::vector<JsonValue>> Fields::array(std::string_view name) const {
  const auto value = find_kind(name, JsonValue::Kind::array, "an array");
  if (!value) return std::nullopt;
  return value->elements();
}

void Fields::wrong_type(std::string_view name, std::string_view expected) const {
  errors_->add(path_of(name), fmt::format("{} must be {}", path_of(name), expected), "invalid_type");
}

void Fields::wrong_value(std::string_view name, std::string_view why) const {
  errors_->add(path_of(name), fmt::format("{} {}", path_of(name), why), "invalid_value");
}

void Fields::refuse(std::string_view name, std::string_view why) const {
  errors_->add(path_of(name), fmt::format("{} {}", path_of(name), why), "unsupported_parameter");
}

std::optional<Fields> element_fields(const JsonValue& element, const std::string& path, FieldErrors& errors) {
  if (element.is(JsonValue::Kind::object)) return Fields(element, path, errors);
  errors.add(path, fmt::format("{} must be an object", path), "invalid_type");
  return std::nullopt;
}

std::string element_path(std::string_view path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

}  // namespace ds4::server::api
