// Writing compact JSON, member by member.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ds4::server::api {

/// Appends `text` as a JSON string. Bytes that are no UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);

/// Values are separated where they must be; that brackets match and members have names is the caller's
/// business.
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  /// The value comes next.
  JsonWriter& key(std::string_view name);

  JsonWriter& string(std::string_view text);
  JsonWriter& null() { return raw("null"); }
  /// `json` is a well-formed value.
  JsonWriter& raw(std::string_view json);
  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
  template <class T>
    requires(std::integral<T> && !std::same_as<T, bool>)
  JsonWriter& integer(T value) {
    return raw(fmt::format_int(value).c_str());
  }
  /// The shortest digits that read back as the same value; what JSON cannot write becomes a bound of the type
  /// that it can.
  JsonWriter& number(float value);

  JsonWriter& member(std::string_view name, std::string_view text) { return key(name).string(text); }
  JsonWriter& member(std::string_view name, const char* text) { return key(name).string(text); }
  JsonWriter& member(std::string_view name, const std::string& text) { return key(name).string(text); }
  JsonWriter& member(std::string_view name, std::same_as<bool> auto value) {
    return key(name).boolean(value);
  }
  template <class T>
    requires(std::integral<T> && !std::same_as<T, bool>)
  JsonWriter& member(std::string_view name, T value) {
    return key(name).integer(value);
  }

  const std::string& text() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();

  std::string out_;
  bool needs_comma_ = false;
};

}  // namespace ds4::server::api
