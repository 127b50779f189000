#include "server/api/json_writer.hpp"

#include <cmath>
#include <limits>

#include "text/utf8.hpp"

namespace ds4::server::api {

namespace {

/// Beside those that JSON wants escaped. Clients that split a stream at these would lose their place in it.
bool ends_line(char32_t character) {
  return character == 0x85 || character == 0x2028 || character == 0x2029;
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  out.push_back('"');
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) {
      const text::CodePoint point = text::code_point_at(text, i);
      if (ends_line(point.value)) {
        out += fmt::format("\\u{:04x}", static_cast<uint32_t>(point.value));
      } else {
        out += point.value == text::kInvalidByte ? kReplacement : text.substr(i, point.length_bytes);
      }
      i += point.length_bytes;
      continue;
    }
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20) {
      out += "\\u00";
      out.push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    } else {
      out.push_back(c);
    }
    ++i;
  }
  out.push_back('"');
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(out_, name);
  out_.push_back(':');
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  append_json_string(out_, text);
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

JsonWriter& JsonWriter::number(float value) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (std::isnan(value)) return null();
  if (std::isinf(value)) value = value < 0 ? -kLargest : kLargest;
  return raw(fmt::format("{}", value));
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_.push_back(bracket);
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_.push_back(bracket);
  needs_comma_ = true;
  return *this;
}

void JsonWriter::separate() {
  if (needs_comma_) out_.push_back(',');
  needs_comma_ = true;
}

}  // namespace ds4::server::api
