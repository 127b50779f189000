// FP8 E4M3 and E8M0, the number formats of the official checkpoint's dense weights.
//
// Layout: E4M3 is sign(1) exponent(4, bias 7) mantissa(3); exponent 0 has steps of 2^-9; no infinities, 0x7f
// and 0xff are NaN, the largest value is 448. E8M0 is a power of two: 2^(b - 127), 255 is NaN. A matrix
// [out][in] of E4M3 bytes comes with scales [out / 128][in / 128], one E8M0 for each tile of 128 x 128.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ds4::format {

inline constexpr size_t kFp8Tile = 128;

inline float e8m0_to_f32(uint8_t exponent) {
  if (exponent == 0) return 0x1p-127f;
  if (exponent == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(uint32_t{exponent} << 23);
}

namespace detail {
constexpr float e4m3_value(unsigned code) {
  const unsigned exponent = code >> 3 & 15, mantissa = code & 7;
  uint32_t bits = 0;
  if ((code & 127) == 127) {
    bits = 0x7fc00000u;
  } else if (exponent != 0) {
    bits = (exponent + 120) << 23 | mantissa << 20;
  } else {
    bits = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-9f);
  }
  return std::bit_cast<float>(bits | (code & 128u) << 24);
}

constexpr std::array<float, 256> e4m3_table() {
  std::array<float, 256> table{};
  for (unsigned code = 0; code < 256; ++code) table[code] = e4m3_value(code);
  return table;
}

inline constexpr std::array<float, 256> kE4m3Values = e4m3_table();
}  // namespace detail

inline float e4m3_to_f32(uint8_t code) {
  return detail::kE4m3Values[code];
}

/// To nearest, ties to the even code; magnitudes above 448 become 448. NaN stays NaN.
inline uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7e);  // 448
  if (magnitude < 0x3c800000u) {                                           // 2^-6: steps of 2^-9
    // Adding 2^14 leaves the multiple of 2^-9 in the low mantissa bits, rounded by the hardware.
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((magnitude >> 20) - (120u << 3)));
}

/// The part of row `row` in columns [0, cols) of a checkpoint matrix. `scales` are those of the whole matrix,
/// cols / 128 to a row of tiles. NaN codes decode to 0.
void decode_fp8_e4m3(const std::byte* codes, const std::byte* scales, size_t row, size_t cols, float* out);

}  // namespace ds4::format
