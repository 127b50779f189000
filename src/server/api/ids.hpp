// Names of replies and their parts that nobody can guess or repeat.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ds4::server::api {

/// `prefix` and `hex_digits` random lower-case digits: random_id("call_", 32).
std::string random_id(std::string_view prefix, size_t hex_digits);

}  // namespace ds4::server::api
