// One table over all number formats that can hold a weight matrix.
#pragma once

#include <cstddef>

#include "format/tensor_type.hpp"

namespace ds4::format {

/// Decodes `elements` values of one row. Preconditions: is_matrix_type(type); elements divisible by the block
/// size.
void decode_row(TensorType type, const std::byte* row, size_t elements, float* out);

/// Encodes a row; supported for F32, F16, BF16 and Q8_0 (half away from zero, as files hold it).
void encode_row(TensorType type, const float* row, size_t elements, std::byte* out);

}  // namespace ds4::format
