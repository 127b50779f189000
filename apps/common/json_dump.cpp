#include "common/json_dump.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cmath>
#include <cstdint>

namespace ds4::cli {
namespace {

bool is_valid_utf8(std::string_view bytes) {
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(bytes.data());
  auto left = static_cast<utf8proc_ssize_t>(bytes.size());
  while (left > 0) {
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t length = utf8proc_iterate(data, left, &code_point);
    if (length <= 0) return false;
    data += length;
    left -= length;
  }
  return true;
}

}  // namespace

std::string json_string(std::string_view bytes) {
  const bool valid = is_valid_utf8(bytes);
  std::string out = "\"";
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || (byte >= 0x80 && !valid)) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string json_token(Token id, std::string_view bytes) {
  std::string list;
  for (const char c : bytes) {
    if (!list.empty()) list += ',';
    list += fmt::format("{}", static_cast<uint8_t>(c));
  }
  return fmt::format("{{\"id\":{},\"text\":{},\"bytes\":[{}]}}", id, json_string(bytes), list);
}

std::string json_number(float value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

}  // namespace ds4::cli
