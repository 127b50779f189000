#include "format/fp4_row.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "format/fp4_e2m1.hpp"
#include "format/fp8_e4m3.hpp"

namespace ds4::format {

void encode_fp4_row(const float* values, Fp4Row& out) {
  for (size_t block = 0; block < Fp4Row::kElements / Fp4Row::kBlock; ++block) {
    const float* x = values + block * Fp4Row::kBlock;
    float largest = 6.0f * 0x1p-126f;
    for (size_t i = 0; i < Fp4Row::kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
    // Exponent rounded up; at least 1 because of the lower bound, at most 252 for finite input.
    const uint32_t ratio = std::bit_cast<uint32_t>(largest / 6.0f);
    const uint32_t exponent = (ratio >> 23) + ((ratio & 0x7fffffu) != 0 ? 1 : 0);
    out.exponents[block] = static_cast<uint8_t>(std::min(exponent, 255u));
    const float scale = e8m0_to_f32(out.exponents[block]);
    uint8_t* codes = out.codes + block * Fp4Row::kBlock / 2;
    for (size_t j = 0; j < Fp4Row::kBlock / 2; ++j) {
      codes[j] = static_cast<uint8_t>(f32_to_e2m1(x[j] / scale) | f32_to_e2m1(x[j + 16] / scale) << 4);
    }
  }
}

void decode_fp4_row(const Fp4Row& row, float* out) {
  for (size_t block = 0; block < Fp4Row::kElements / Fp4Row::kBlock; ++block) {
    const float scale = e8m0_to_f32(row.exponents[block]);
    const uint8_t* codes = row.codes + block * Fp4Row::kBlock / 2;
    float* values = out + block * Fp4Row::kBlock;
    for (size_t j = 0; j < Fp4Row::kBlock / 2; ++j) {
      values[j] = e2m1_to_f32(codes[j]) * scale;
      values[j + 16] = e2m1_to_f32(codes[j] >> 4) * scale;
    }
  }
}

void fp4_round_trip(float* values) {
  Fp4Row row;
  encode_fp4_row(values, row);
  decode_fp4_row(row, values);
}

}  // namespace ds4::format
