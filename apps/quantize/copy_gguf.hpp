// Parts of a GGUF file copied into another one as they are.
#pragma once

#include <functional>
#include <string_view>

#include "ds4/error.hpp"
#include "format/gguf.hpp"
#include "format/gguf_writer.hpp"

namespace ds4::quantize {

/// All keys but those of a split set and those that `leave_out` is true for.
void copy_keys(const format::GgufFile& file, const std::function<bool(std::string_view)>& leave_out,
               format::GgufWriter& writer);

/// Adds `tensor` to the list of a file, under `name`.
void add_like(std::string_view name, const format::GgufTensor& tensor, format::GgufWriter& writer);

/// The bytes of `tensor`, a piece at a time; its pages of the source are let go. `cancelled` (may be empty)
/// is polled before each piece.
Result<void> copy_tensor(const format::GgufTensor& tensor, const std::function<bool()>& cancelled,
                         format::GgufWriter& writer);

}  // namespace ds4::quantize
