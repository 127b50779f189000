// The int8 matrix products: blocks of 32 columns as exact integer sums, scaled and accumulated in F32.
//
// One order for every kernel: the sum of block b goes to lane b % 8 as fma(sum, w_scale * x_scale, lane),
// followed, for formats with a minimum, by fma(-minimum, x_sum, lane) for its first and second 16 columns;
// blocks of a lane in ascending order; then the lanes ((lane 0 + lane 1) + lane 2) + ...
#pragma once

#include "backend/cpu/matmul.hpp"
#include "backend/cpu/weight_tiles.hpp"

namespace ds4::cpu {

inline constexpr size_t kInt8Lanes = 8;
inline constexpr size_t kInt8Block = 32;

/// Rows of one matrix times some activation rows; out as in matmul_rows.
struct Int8Product {
  format::TensorType type;
  const std::byte* rows;
  size_t row_bytes;
  size_t row_count;
  size_t cols;
  const Activations::View* x;
  const uint32_t* tokens;  // nullptr: 0, 1, 2, ...
  size_t count;
  float* out;
  size_t out_stride;
  MatmulScratch* scratch;

  size_t token(size_t i) const { return tokens != nullptr ? tokens[i] : i; }
};

/// True if this machine runs int8_product_avx512 and decode_row_codes_avx512.
bool has_avx512_vnni();
bool int8_product_avx512(const Int8Product& product);
void decode_row_codes_avx512(format::TensorType type, const std::byte* row, size_t cols, const CodeRow& out);
/// Highway kernels for every machine. Like the other, false if memory is exhausted.
bool int8_product_portable(const Int8Product& product);
const char* portable_target_name();

}  // namespace ds4::cpu
