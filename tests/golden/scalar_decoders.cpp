#include "scalar_decoders.hpp"

#include <cmath>
#include <cstring>

#include "format/iq2_xxs_tables.hpp"

namespace ds4::test {
namespace {

unsigned u16_at(const uint8_t* bytes) {
  return bytes[0] | unsigned{bytes[1]} << 8;
}

// Products of two such numbers and a small integer are exact in double, so one rounding to float remains,
// where the format rounds.
float f16_at(const uint8_t* bytes) {
  const unsigned bits = u16_at(bytes);
  const int exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

float bf16_at(const uint8_t* bytes) {
  const uint32_t bits = u16_at(bytes) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float q8_0(const uint8_t* block, size_t i) {
  return f16_at(block) * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

float mxfp4(const uint8_t* block, size_t i) {
  constexpr double magnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const unsigned code = i < 16 ? block[1 + i] & 15 : block[1 + i - 16] >> 4;
  const double value = std::ldexp(magnitudes[code & 7], block[0] - 127);
  return static_cast<float>((code & 8) != 0 ? -value : value);
}

float q2_k(const uint8_t* block, size_t i) {
  const size_t half = i / 128, shift = 2 * (i % 128 / 32), at = 32 * half + i % 32;
  const int code = block[16 + at] >> shift & 3, scale = block[i / 16] & 15, minimum = block[i / 16] >> 4;
  const float step = f16_at(block + 80) * static_cast<float>(scale);
  const float offset = f16_at(block + 82) * static_cast<float>(minimum);
  return step * static_cast<float>(code) - offset;
}

float q4_k(const uint8_t* block, size_t i) {
  const uint8_t* packed = block + 4;
  const size_t j = i / 32;
  int scale = 0, minimum = 0;
  if (j < 4) {
    scale = packed[j] & 63;
    minimum = packed[j + 4] & 63;
  } else {
    scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
    minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
  }
  const uint8_t byte = block[16 + 32 * (i / 64) + i % 32];
  const int code = i % 64 < 32 ? byte & 15 : byte >> 4;
  const float step = f16_at(block) * static_cast<float>(scale);
  const float offset = f16_at(block + 2) * static_cast<float>(minimum);
  return step * static_cast<float>(code) - offset;
}

float iq2_xxs(const uint8_t* block, size_t i) {
  const uint8_t* group = block + 2 + 8 * (i / 32);
  const size_t octet = i % 32 / 8, element = i % 8;
  const uint32_t word = u16_at(group + 4) | uint32_t{u16_at(group + 6)} << 16;
  const int level = static_cast<int>(format::kIq2XxsGrid[group[octet]] >> (8 * element) & 255);
  const unsigned signs = word >> (7 * octet) & 127;
  unsigned negatives = 0;
  for (unsigned bits = signs; bits != 0; bits >>= 1) negatives += bits & 1;
  const bool is_negative = element < 7 ? (signs >> element & 1) != 0 : negatives % 2 == 1;
  const float scale = f16_at(block) * static_cast<float>(2 * (word >> 28) + 1) / 8;
  return scale * static_cast<float>(is_negative ? -level : level);
}

}  // namespace

std::vector<float> decode_again(format::TensorType type, const uint8_t* bytes, size_t count) {
  using format::TensorType;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    switch (type) {
      case TensorType::f32:
        std::memcpy(&values[i], bytes + 4 * i, 4);
        break;
      case TensorType::f16:
        values[i] = f16_at(bytes + 2 * i);
        break;
      case TensorType::bf16:
        values[i] = bf16_at(bytes + 2 * i);
        break;
      case TensorType::q8_0:
        values[i] = q8_0(bytes + 34 * (i / 32), i % 32);
        break;
      case TensorType::mxfp4:
        values[i] = mxfp4(bytes + 17 * (i / 32), i % 32);
        break;
      case TensorType::q2_k:
        values[i] = q2_k(bytes + 84 * (i / 256), i % 256);
        break;
      case TensorType::q4_k:
        values[i] = q4_k(bytes + 144 * (i / 256), i % 256);
        break;
      case TensorType::iq2_xxs:
        values[i] = iq2_xxs(bytes + 66 * (i / 256), i % 256);
        break;
      default:
        values[i] = NAN;
    }
  }
  return values;
}

}  // namespace ds4::test
