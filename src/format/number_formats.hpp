// One table over all number formats that can hold a weight matrix.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "format/tensor_type.hpp"

namespace ds4::format {

/// Decodes `elements` values of one row. Preconditions: is_matrix_type(type); elements divisible by the block
/// size.
void decode_row(TensorType type, const std::byte* row, size_t elements, float* out);

/// The largest magnitude that can be encoded: what the type can hold, and for the formats that search scales
/// what their sums in F32 can.
float largest_encodable(TensorType type);

/// True if a type cannot be encoded without importance (IQ2_XXS).
bool needs_importance(TensorType type);

/// Importance of columns as the encoders want it: multiplied by a power of 4, which changes no comparison, so
/// that the largest is in [1, 4); and nothing below 2^-30, so that no part of a row is without weight. All
/// ones if all are zero. An error if one is negative or not finite.
Result<std::vector<float>> prepare_importance(std::span<const float> importance);

/// not_finite or unsupported for a value that is not finite or above largest_encodable(), naming its column.
Result<void> check_encodable(TensorType type, const float* row, size_t elements);

/// Encodes a row in any type that can hold a weight matrix. `importance` comes from prepare_importance() and
/// has one number for each column, or is null; types that do not search scales ignore it. The result depends
/// on nothing but the arguments. Errors: not_finite or unsupported for a value that is not finite or above
/// largest_encodable(), naming its column; invalid_argument where needs_importance() is not met or a row is
/// not whole blocks.
Result<void> encode_weighted_row(TensorType type, const float* row, size_t elements, const float* importance,
                                 std::byte* out);

/// Encodes a row without checks; supported for F32, F16, BF16 and Q8_0 (half away from zero, as files hold
/// it).
void encode_row(TensorType type, const float* row, size_t elements, std::byte* out);

}  // namespace ds4::format
