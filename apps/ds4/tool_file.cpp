#include "tool_file.hpp"

#include <boost/json.hpp>

#include "base/error.hpp"

namespace ds4::cli {
namespace {

/// Walks over JSON text that is known to be well-formed.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  char peek() {
    while (text_[position_] == ' ' || text_[position_] == '\n' || text_[position_] == '\r' ||
           text_[position_] == '\t') {
      ++position_;
    }
    return text_[position_];
  }
  void take() { ++position_; }

  /// The text of the value that begins here.
  std::string_view value() {
    peek();
    const size_t begin = position_;
    size_t depth = 0;
    while (true) {
      const char c = text_[position_];
      if (c == '"') {
        skip_string();
      } else if (c == '{' || c == '[') {
        ++depth;
        ++position_;
      } else if (c == '}' || c == ']') {
        if (depth == 0) break;  // the end of what encloses a bare number or word
        --depth;
        ++position_;
      } else if (depth == 0 && (c == ',' || c == ':')) {
        break;
      } else {
        ++position_;
        continue;
      }
      if (depth == 0) break;
    }
    return text_.substr(begin, position_ - begin);
  }

 private:
  void skip_string() {
    for (++position_; text_[position_] != '"'; ++position_) {
      if (text_[position_] == '\\') ++position_;
    }
    ++position_;
  }

  std::string_view text_;
  size_t position_ = 0;
};

/// The text of member `key` of an object; the last one if it is repeated, as in the parsed value.
std::string_view member(std::string_view object, std::string_view key) {
  Cursor cursor(object);
  std::string_view found;
  do {
    cursor.take();  // '{' or ','
    if (cursor.peek() == '}') break;
    const std::string_view name = cursor.value();
    cursor.peek();
    cursor.take();  // ':'
    const std::string_view value = cursor.value();
    if (boost::json::parse(name).as_string() == key) found = value;
  } while (cursor.peek() == ',');
  return found;
}

}  // namespace

Result<std::vector<std::string>> parse_tools(std::string_view json, const std::string& name) {
  boost::system::error_code error;
  const boost::json::value root = boost::json::parse(json, error);
  if (error) return fail(ErrorCode::format, "{}: not JSON ({})", name, error.message());
  if (!root.is_array()) return fail(ErrorCode::format, "{}: not a JSON array of function schemas", name);
  std::vector<std::string> schemas;
  Cursor cursor(json);
  cursor.peek();
  for (const boost::json::value& tool : root.get_array()) {
    cursor.peek();
    cursor.take();  // '[' or ','
    std::string_view text = cursor.value();
    if (!tool.is_object()) {
      return fail(ErrorCode::format, "{}: element {} is not an object", name, schemas.size() + 1);
    }
    const boost::json::value* schema = tool.get_object().if_contains("function");
    if (schema != nullptr && schema->is_object()) {
      text = member(text, "function");
    } else {
      schema = &tool;
    }
    const boost::json::value* function_name = schema->get_object().if_contains("name");
    if (function_name == nullptr || !function_name->is_string()) {
      return fail(ErrorCode::format, "{}: element {} has no name", name, schemas.size() + 1);
    }
    schemas.emplace_back(text);
  }
  return schemas;
}

}  // namespace ds4::cli
