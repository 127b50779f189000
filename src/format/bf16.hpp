// bfloat16: the upper 16 bits of an F32.
//
// Layout: sign(1) exponent(8, bias 127) mantissa(7), little endian. Encoding rounds to nearest, ties to even.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace ds4::format {

inline float bf16_to_f32(uint16_t value) {
  return std::bit_cast<float>(uint32_t{value} << 16);
}

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // keep NaN a NaN
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void decode_bf16(const std::byte* row, size_t elements, float* out);
void encode_bf16(const float* row, size_t elements, std::byte* out);
/// Plain loops over the decoded values, summed in order.
float dot_bf16(const std::byte* row, const float* x, size_t elements);

}  // namespace ds4::format
