// Decoders of the GGUF number formats written down once more from docs/formats.md §7-§9, with nothing of
// src/format but the tables of IQ2_XXS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/tensor_type.hpp"

namespace ds4::test {

/// All values of a tensor of `count` elements.
std::vector<float> decode_again(format::TensorType type, const uint8_t* bytes, size_t count);

}  // namespace ds4::test
