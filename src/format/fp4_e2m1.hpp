// FP4 E2M1, the number format of the official checkpoint's expert weights, and its lossless repacking to
// MXFP4.
//
// Layout: codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. A matrix [out][in] is packed [out][in
// / 2]: byte j of a row holds element 2j in the low and 2j + 1 in the high nibble. Scales [out][in / 32],
// E8M0.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ds4::format {

inline constexpr size_t kFp4Block = 32;
inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
/// Twice the values: exact integers.
inline constexpr std::array<int8_t, 16> kE2m1Doubled = {0, 1,  2,  3,  4,  6,  8,  12,
                                                        0, -1, -2, -3, -4, -6, -8, -12};

inline float e2m1_to_f32(uint8_t code) {
  return kE2m1Values[code & 15];
}

/// To nearest, ties to the even code; magnitudes above 6 become 6, NaN too.
inline uint8_t f32_to_e2m1(float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 28 & 8u;
  const float x = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  const uint32_t code = x <= 0.25f   ? 0
                        : x < 0.75f  ? 1
                        : x <= 1.25f ? 2
                        : x < 1.75f  ? 3
                        : x <= 2.5f  ? 4
                        : x < 3.5f   ? 5
                        : x <= 5.0f  ? 6
                                     : 7;
  return static_cast<uint8_t>(sign | code);
}

/// One row: `codes` are elements / 2 bytes, `scales` elements / 32 bytes.
void decode_fp4_e2m1(const std::byte* codes, const std::byte* scales, size_t elements, float* out);
/// The same row as MXFP4 blocks (17 bytes for every 32 elements), every bit of the values kept.
void repack_fp4_e2m1_to_mxfp4(const std::byte* codes, const std::byte* scales, size_t elements,
                              std::byte* out);

}  // namespace ds4::format
