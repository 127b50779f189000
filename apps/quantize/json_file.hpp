// Reading a JSON file whose content is checked key by key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "ds4/error.hpp"

namespace ds4::quantize {

/// A parsed file together with its path, for error sentences.
struct JsonFile {
  std::string path;
  boost::json::value value;
};

/// Parses `path`, whose top level must be an object.
Result<JsonFile> read_json_object(const std::string& path);

/// A member of an object inside `path`; an error that names the key if it is absent or of another type.
Result<const boost::json::value*> json_member(const std::string& path, const boost::json::object& object,
                                              std::string_view key);
Result<uint32_t> json_uint32(const std::string& path, const boost::json::object& object,
                             std::string_view key);
Result<double> json_number(const std::string& path, const boost::json::object& object, std::string_view key);
Result<bool> json_bool(const std::string& path, const boost::json::object& object, std::string_view key);
Result<std::string_view> json_string(const std::string& path, const boost::json::object& object,
                                     std::string_view key);
Result<const boost::json::array*> json_array(const std::string& path, const boost::json::object& object,
                                             std::string_view key);

}  // namespace ds4::quantize
