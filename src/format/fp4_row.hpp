// A row of the indexer (query head or key) as the model rounds it: E2M1 codes with power-of-two scales
// (docs/model.md §3.4). Lossless storage of the rounded values.
//
// Layout, 68 bytes: 0 codes[64] (four blocks of 16 bytes: byte j of a block holds element j in the low and
// element j + 16 in the high nibble, as MXFP4 does), 64 exponents[4] (E8M0, one for every 32 codes). Value =
// E2M1(code) * 2^(exponent - 127); the scale is the smallest power of two >= max(|x|, 6 * 2^-126) / 6.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4::format {

struct Fp4Row {
  static constexpr size_t kElements = 128;
  static constexpr size_t kBlock = 32;
  uint8_t codes[kElements / 2];
  uint8_t exponents[kElements / kBlock];
};
static_assert(sizeof(Fp4Row) == 68);

void encode_fp4_row(const float* values, Fp4Row& out);
void decode_fp4_row(const Fp4Row& row, float* out);
/// decode(encode(values)) in place, on 128 values.
void fp4_round_trip(float* values);

}  // namespace ds4::format
