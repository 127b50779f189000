// Weight rows as the int8 products read them: int8 codes, one F32 scale for every 32 columns, and for Q4_K
// and Q2_K one F32 minimum for every 16 columns. Value = scale * code - minimum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/tensor_type.hpp"

namespace ds4::cpu {

/// True for the formats whose values have a minimum.
bool has_minimum(format::TensorType type);

/// Plain-loop decoder of one row; Q8_0, MXFP4, Q4_K, Q2_K, IQ2_XXS. Minima are written for formats with a
/// minimum only. Scales are rounded as the formats' own decoders round them: d * scale in F32.
void decode_row_codes(format::TensorType type, const std::byte* row, size_t cols, int8_t* codes,
                      float* scales, float* min0, float* min1);

}  // namespace ds4::cpu
