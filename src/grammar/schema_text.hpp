// Schema documents as text.
#pragma once

#include <string_view>

#include <boost/json.hpp>

#include "ds4/error.hpp"

namespace ds4::grammar {

inline constexpr size_t kMostSchemaBytes = size_t{1} << 20;

/// The error message begins with `field`.
Result<boost::json::value> parse_schema(std::string_view text, std::string_view field);

}  // namespace ds4::grammar
