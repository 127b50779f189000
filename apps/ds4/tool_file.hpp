// Reading the file of --tools.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"

namespace ds4::cli {

/// The function schemas in a JSON array, each as the text it has in the file: the model was trained on
/// schemas as clients write them, so nothing is re-serialised. {"type":"function","function":{...}} counts as
/// its "function" member. `name` begins error sentences.
Result<std::vector<std::string>> parse_tools(std::string_view json, const std::string& name);

}  // namespace ds4::cli
