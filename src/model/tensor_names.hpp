// Looks a tensor up under its own name and under the names other converters give it (docs/formats.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "format/gguf.hpp"

namespace ds4::model {

/// `name` first, then its known aliases.
std::vector<std::string> tensor_spellings(std::string_view name);

/// nullptr if the tensor is absent under every spelling; an error if two spellings are present.
Result<const format::GgufTensor*> find_tensor(const format::GgufFile& file, std::string_view name);

}  // namespace ds4::model
