#include "format/fp8_row.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "format/fp8_e4m3.hpp"

namespace ds4::format {

void encode_fp8_row(const float* values, Fp8Row& out) {
  for (size_t block = 0; block < Fp8Row::kElements / Fp8Row::kBlock; ++block) {
    const float* x = values + block * Fp8Row::kBlock;
    // As whole numbers, the bits of NaN are above those of every magnitude: its exponent becomes 255.
    uint32_t bits = std::bit_cast<uint32_t>(1e-4f);
    for (size_t i = 0; i < Fp8Row::kBlock; ++i)
      bits = std::max(bits, std::bit_cast<uint32_t>(std::fabs(x[i])));
    const float largest = std::bit_cast<float>(bits);
    // Exponent rounded up; at most 254 - 8 for finite input.
    const uint32_t ratio = std::bit_cast<uint32_t>(largest * (1.0f / 448.0f));
    const uint32_t exponent = (ratio >> 23) + ((ratio & 0x7fffffu) != 0 ? 1 : 0);
    out.exponents[block] = static_cast<uint8_t>(std::min(exponent, 255u));
    const float inverse = e8m0_to_f32(static_cast<uint8_t>(254 - std::min(exponent, 254u)));
    for (size_t i = 0; i < Fp8Row::kBlock; ++i) {
      out.codes[block * Fp8Row::kBlock + i] = f32_to_e4m3(x[i] * inverse);
    }
  }
}

void decode_fp8_row(const Fp8Row& row, float* out) {
  for (size_t block = 0; block < Fp8Row::kElements / Fp8Row::kBlock; ++block) {
    const float scale = e8m0_to_f32(row.exponents[block]);
    for (size_t i = block * Fp8Row::kBlock; i < (block + 1) * Fp8Row::kBlock; ++i) {
      out[i] = e4m3_to_f32(row.codes[i]) * scale;
    }
  }
}

void fp8_round_trip(float* values) {
  Fp8Row row;
  encode_fp8_row(values, row);
  decode_fp8_row(row, values);
}

}  // namespace ds4::format
