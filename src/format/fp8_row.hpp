// The non-rotary part of an attention KV row as the model rounds it: E4M3 codes with power-of-two scales
// (docs/model.md §3.3). Lossless storage of the rounded values.
//
// Layout, 455 bytes: 0 codes[448] (E4M3), 448 exponents[7] (E8M0, one for every 64 codes).
// Value = E4M3(code) * 2^(exponent - 127); the scale is the smallest power of two that is >= max(|x|, 1e-4) /
// 448.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4::format {

struct Fp8Row {
  static constexpr size_t kElements = 448;
  static constexpr size_t kBlock = 64;
  uint8_t codes[kElements];
  uint8_t exponents[kElements / kBlock];
};
static_assert(sizeof(Fp8Row) == 455);

void encode_fp8_row(const float* values, Fp8Row& out);
void decode_fp8_row(const Fp8Row& row, float* out);
/// decode(encode(values)) in place, on the first 448 values of a row.
void fp8_round_trip(float* values);

}  // namespace ds4::format
