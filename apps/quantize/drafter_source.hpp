// A GGUF file with nothing but an MTP block as a source: it has no keys that tell its shape.
#pragma once

#include "ds4/error.hpp"
#include "format/gguf.hpp"
#include "model/shape.hpp"

namespace ds4::quantize {

/// True for a file with MTP tensors and without a token embedding. An error if it is the drafter of another
/// architecture (DSpark: several stages).
Result<bool> is_drafter_file(const format::GgufFile& file);

/// The counts that the MTP block shows in the dims of its tensors; those that it does not depend on are small
/// numbers that pass check_shape().
Result<model::ModelShape> read_drafter_shape(const format::GgufFile& file);

}  // namespace ds4::quantize
