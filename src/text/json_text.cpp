#include "text/json_text.hpp"

#include <cstdint>

#include "text/utf8.hpp"

namespace ds4::text {
namespace {

constexpr char32_t kReplacementCharacter = 0xFFFD;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// The value of four hexadecimal digits, or -1.
int hex4(std::string_view text, size_t position) {
  if (text.size() < 4 || position > text.size() - 4) return -1;
  int value = 0;
  for (size_t i = 0; i < 4; ++i) {
    const int digit = hex_digit(text[position + i]);
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::optional<size_t> string_end(std::string_view text, size_t position) {
  for (size_t i = position + 1; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') return i + 1;
    if (static_cast<unsigned char>(c) < 0x20) return std::nullopt;
    if (c != '\\') continue;
    ++i;
    if (i >= text.size()) return std::nullopt;
    if (text[i] == 'u') {
      if (hex4(text, i + 1) < 0) return std::nullopt;
      i += 4;
    } else if (std::string_view("\"\\/bfnrt").find(text[i]) == std::string_view::npos) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

size_t digits_end(std::string_view text, size_t position) {
  while (position < text.size() && is_digit(text[position])) ++position;
  return position;
}

std::optional<size_t> number_end(std::string_view text, size_t position) {
  size_t i = position;
  if (text[i] == '-') ++i;
  if (i >= text.size() || !is_digit(text[i])) return std::nullopt;
  i = text[i] == '0' ? i + 1 : digits_end(text, i);
  if (i + 1 < text.size() && text[i] == '.' && is_digit(text[i + 1])) i = digits_end(text, i + 1);
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    size_t exponent = i + 1;
    if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
    if (exponent < text.size() && is_digit(text[exponent])) i = digits_end(text, exponent);
  }
  return i;
}

/// A string, number or literal.
std::optional<size_t> scalar_end(std::string_view text, size_t position) {
  const char c = text[position];
  if (c == '"') return string_end(text, position);
  if (c == '-' || is_digit(c)) return number_end(text, position);
  for (const std::string_view literal : {"true", "false", "null"}) {
    if (text.substr(position, literal.size()) == literal) return position + literal.size();
  }
  return std::nullopt;
}

/// `"key" :` up to where the value begins.
std::optional<size_t> key_end(std::string_view text, size_t position) {
  if (position >= text.size() || text[position] != '"') return std::nullopt;
  const auto end = string_end(text, position);
  if (!end) return std::nullopt;
  const size_t colon = skip_white_space(text, *end);
  if (colon >= text.size() || text[colon] != ':') return std::nullopt;
  return skip_white_space(text, colon + 1);
}

}  // namespace

size_t skip_white_space(std::string_view text, size_t position) {
  const size_t found = text.find_first_not_of(" \t\r\n", position);
  return found == std::string_view::npos ? text.size() : found;
}

std::optional<size_t> json_value_end(std::string_view text, size_t position) {
  std::string open;  // the closing brackets that are still to come, innermost last
  size_t i = skip_white_space(text, position);
  while (true) {
    if (i >= text.size()) return std::nullopt;
    const char c = text[i];
    bool complete = true;
    if (c == '{' || c == '[') {
      open.push_back(c == '{' ? '}' : ']');
      i = skip_white_space(text, i + 1);
      if (i < text.size() && text[i] == open.back()) {
        open.pop_back();
        ++i;
      } else {
        complete = false;
        if (c == '{') {
          const auto value = key_end(text, i);
          if (!value) return std::nullopt;
          i = *value;
        }
      }
    } else {
      const auto end = scalar_end(text, i);
      if (!end) return std::nullopt;
      i = *end;
    }
    while (complete) {
      if (open.empty()) return i;
      i = skip_white_space(text, i);
      if (i >= text.size()) return std::nullopt;
      if (text[i] == open.back()) {
        open.pop_back();
        ++i;
      } else if (text[i] == ',') {
        complete = false;
        i = skip_white_space(text, i + 1);
        if (open.back() == '}') {
          const auto value = key_end(text, i);
          if (!value) return std::nullopt;
          i = *value;
        }
      } else {
        return std::nullopt;
      }
    }
  }
}

std::optional<std::vector<JsonMember>> json_object_members(std::string_view text) {
  const size_t begin = skip_white_space(text, 0);
  if (begin >= text.size() || text[begin] != '{') return std::nullopt;
  const auto end = json_value_end(text, begin);
  if (!end || skip_white_space(text, *end) != text.size()) return std::nullopt;
  std::vector<JsonMember> members;
  size_t i = skip_white_space(text, begin + 1);
  while (text[i] != '}') {
    const size_t key_begin = i;
    const size_t key_stop = *string_end(text, key_begin);
    const size_t value_begin = *key_end(text, key_begin);
    const size_t value_stop = *json_value_end(text, value_begin);
    members.push_back({json_unquote(text.substr(key_begin, key_stop - key_begin)),
                       text.substr(value_begin, value_stop - value_begin)});
    i = skip_white_space(text, value_stop);
    if (text[i] == ',') i = skip_white_space(text, i + 1);
  }
  return members;
}

std::string json_minify(std::string_view value) {
  std::string result;
  bool in_string = false;
  for (size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    if (in_string) {
      result.push_back(c);
      if (c == '\\' && i + 1 < value.size()) {
        result.push_back(value[++i]);
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c != ' ' && c != '\t' && c != '\r' && c != '\n') {
      result.push_back(c);
      in_string = c == '"';
    }
  }
  return result;
}

std::string json_unquote(std::string_view value) {
  std::string result;
  const std::string_view body = value.substr(1, value.size() - 2);
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\') {
      result.push_back(body[i]);
      continue;
    }
    ++i;
    switch (body[i]) {
      case 'b':
        result.push_back('\b');
        break;
      case 'f':
        result.push_back('\f');
        break;
      case 'n':
        result.push_back('\n');
        break;
      case 'r':
        result.push_back('\r');
        break;
      case 't':
        result.push_back('\t');
        break;
      case 'u': {
        auto unit = static_cast<char32_t>(hex4(body, i + 1));
        i += 4;
        if (unit >= 0xD800 && unit <= 0xDBFF && body.substr(i + 1, 2) == "\\u") {
          const int low = hex4(body, i + 3);
          if (low >= 0xDC00 && low <= 0xDFFF) {
            unit = 0x10000 + ((unit - 0xD800) << 10) + (static_cast<char32_t>(low) - 0xDC00);
            i += 6;
          }
        }
        const bool lone_surrogate = unit >= 0xD800 && unit <= 0xDFFF;
        append_utf8(result, lone_surrogate ? kReplacementCharacter : unit);
        break;
      }
      default:
        result.push_back(body[i]);
        break;
    }
  }
  return result;
}

std::string json_escape(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result.push_back('\\');
      result.push_back(c);
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (byte < 0x20) {
      result += "\\u00";
      result.push_back(kHex[byte >> 4]);
      result.push_back(kHex[byte & 15]);
    } else {
      result.push_back(c);
    }
  }
  return result;
}

std::string json_quote(std::string_view text) {
  std::string result = "\"";
  return result.append(json_escape(text)).append("\"");
}

}  // namespace ds4::text
