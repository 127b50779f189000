// Matrix products with activations in F32.
//
// One order for every kernel: column c goes to lane c % 16 by fma, columns in ascending order; then the lanes
// are folded in halves: l + (l + 8), l + (l + 4), l + (l + 2), l + (l + 1).
#pragma once

#include "backend/cpu/matmul.hpp"

namespace ds4::cpu {

/// Rows of one matrix of any format times some activation rows; out as in matmul_rows.
struct F32Product {
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

/// False if memory is exhausted.
bool f32_product(const F32Product& product);

}  // namespace ds4::cpu
