// Importance vectors inside a GGUF file, as tensors that the engine does not use (docs/formats.md §10).
#pragma once

#include <span>

#include "ds4/error.hpp"
#include "format/gguf_writer.hpp"
#include "format/imatrix.hpp"
#include "tensor_map.hpp"

namespace ds4::quantize {

/// Adds every entry to the list of a file; those of matrices of experts among `tensors` get their two
/// dimensions.
void add_vectors(const format::Imatrix& imatrix, std::span<const MappedTensor> tensors,
                 format::GgufWriter& writer);

/// Writes them, but for the first `complete` ones.
Result<void> write_vectors(const format::Imatrix& imatrix, size_t complete, format::GgufWriter& writer);

}  // namespace ds4::quantize
