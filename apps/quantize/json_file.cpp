#include "json_file.hpp"

#include <limits>

#include "base/error.hpp"
#include "base/mapped_file.hpp"

namespace ds4::quantize {
namespace {

Error wrong_kind(const std::string& path, std::string_view key, std::string_view expected) {
  return fail(ErrorCode::format, "{}: {} must be {}", path, key, expected);
}

}  // namespace

Result<JsonFile> read_json_object(const std::string& path) {
  DS4_ASSIGN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  boost::system::error_code error;
  boost::json::value value =
      boost::json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, error);
  if (error) return fail(ErrorCode::format, "{}: this is not valid JSON: {}", path, error.message());
  if (!value.is_object()) return fail(ErrorCode::format, "{}: the top level must be a JSON object", path);
  return JsonFile{path, std::move(value)};
}

Result<const boost::json::value*> json_member(const std::string& path, const boost::json::object& object,
                                              std::string_view key) {
  const boost::json::value* value = object.if_contains(key);
  if (!value) return fail(ErrorCode::not_found, "{}: {} is missing", path, key);
  return value;
}

Result<uint32_t> json_uint32(const std::string& path, const boost::json::object& object,
                             std::string_view key) {
  DS4_ASSIGN(const boost::json::value* value, json_member(path, object, key));
  const int64_t* number = value->if_int64();
  if (!number || *number < 0 || *number > std::numeric_limits<uint32_t>::max())
    return wrong_kind(path, key, "a non-negative 32-bit integer");
  return static_cast<uint32_t>(*number);
}

Result<double> json_number(const std::string& path, const boost::json::object& object, std::string_view key) {
  DS4_ASSIGN(const boost::json::value* value, json_member(path, object, key));
  boost::system::error_code error;
  const double number = value->to_number<double>(error);
  if (error) return wrong_kind(path, key, "a number");
  return number;
}

Result<bool> json_bool(const std::string& path, const boost::json::object& object, std::string_view key) {
  DS4_ASSIGN(const boost::json::value* value, json_member(path, object, key));
  if (!value->is_bool()) return wrong_kind(path, key, "true or false");
  return value->get_bool();
}

Result<std::string_view> json_string(const std::string& path, const boost::json::object& object,
                                     std::string_view key) {
  DS4_ASSIGN(const boost::json::value* value, json_member(path, object, key));
  if (!value->is_string()) return wrong_kind(path, key, "a string");
  return std::string_view(value->get_string());
}

Result<const boost::json::array*> json_array(const std::string& path, const boost::json::object& object,
                                             std::string_view key) {
  DS4_ASSIGN(const boost::json::value* value, json_member(path, object, key));
  if (!value->is_array()) return wrong_kind(path, key, "an array");
  return &value->get_array();
}

}  // namespace ds4::quantize
