// Q8_K: activations for the 256-element formats. Never stored in a model file.
//
// Layout, 292 bytes: 0 d (F32), 4 q[256] (i8), 260 sums[16] (i16, sum of each 16 consecutive codes). Value =
// d * q. The element with the largest magnitude (the first of equals) becomes exactly -127; the others round
// ties to even.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4::format {

struct [[gnu::packed]] BlockQ8_K {
  static constexpr size_t kElements = 256;
  float d;
  int8_t q[256];
  int16_t sums[16];
};
static_assert(sizeof(BlockQ8_K) == 292);

/// `out` holds elements / 256 blocks.
void quantize_activations_q8_k(const float* row, size_t elements, BlockQ8_K* out);

}  // namespace ds4::format
