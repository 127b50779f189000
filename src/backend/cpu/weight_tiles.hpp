// Weight rows as the products read them. For the int8 products: int8 codes, one F32 scale for every 32
// columns, and for Q4_K and Q2_K one F32 minimum for every 16 columns; value = scale * code - minimum. For
// the F32 products: those values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/tensor_type.hpp"

namespace ds4::cpu {

/// True for the formats whose values have a minimum.
constexpr bool has_minimum(format::TensorType type) {
  return type == format::TensorType::q4_k || type == format::TensorType::q2_k;
}

/// Where the decoder writes; min0 and min1 (first and second 16 columns of a block) for formats with a
/// minimum only.
struct CodeRow {
  int8_t* codes;  // [cols]
  float* scales;  // [cols / 32]
  float* min0;
  float* min1;
};

/// One row, or whole blocks of one; Q8_0, MXFP4, Q4_K, Q2_K, IQ2_XXS. Scales are d * scale, which is exact in
/// F32. Q2_K's four-bit scales are multiplied into the codes (at most 45), which leaves one scale for 256
/// columns.
void decode_row_codes(format::TensorType type, const std::byte* row, size_t cols, const CodeRow& out);

/// The same in plain loops.
void decode_row_codes_plain(format::TensorType type, const std::byte* row, size_t cols, const CodeRow& out);

/// The same to F32, for every matrix format. The bits of format::decode_row, except that a zero of MXFP4 has
/// no sign: scale * code is exact, so one rounding is left, the subtraction of the minimum.
void decode_row_f32(format::TensorType type, const std::byte* row, size_t cols, float* out);

/// False if this process was told not to use AVX-512 (tests and benchmarks, through Highway).
bool avx512_chosen();

}  // namespace ds4::cpu
