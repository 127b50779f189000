// Rounds a row of activations to the int8 forms that the products read.
#pragma once

#include "backend/cpu/matmul.hpp"

namespace ds4::cpu {

/// One row of Activations::View. sums0 and sums1 are the two planes of `sums`.
struct QuantizedRow {
  int8_t* codes;
  float* scales;
  float* sums0;
  float* sums1;
  int32_t* offsets;
};

/// The codes and scales of format::quantize_activations_q8_0 or _q8_k, bit for bit. Precondition: cols a
/// multiple of 32 (256 for Q8_K).
void quantize_row(ActivationFormat format, const float* x, size_t cols, const QuantizedRow& out);

}  // namespace ds4::cpu
