// IEEE binary16 and plain F32 rows.
//
// Layout: F16 is sign(1) exponent(5, bias 15) mantissa(10), little endian, with subnormals, infinities and
// NaN. F32 -> F16 rounds to nearest, ties to even; what is too large becomes an infinity.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace ds4::format {

inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // The shifted pattern is the value times 2^-112, a subnormal F32 for subnormal F16: exact in both cases.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65536 and above
  if (magnitude < 0x38800000u) {                                               // below 2^-14: subnormal
    // Adding 0.5 leaves the multiple of 2^-24 in the low mantissa bits, rounded by the hardware.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  magnitude += 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u) >> 13));
}

void decode_f32(const std::byte* row, size_t elements, float* out);
void encode_f32(const float* row, size_t elements, std::byte* out);
void decode_f16(const std::byte* row, size_t elements, float* out);
void encode_f16(const float* row, size_t elements, std::byte* out);
/// Plain loops over the decoded values, summed in order.
float dot_f16(const std::byte* row, const float* x, size_t elements);

}  // namespace ds4::format
