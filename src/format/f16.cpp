#include "format/f16.hpp"

#include <cstring>

namespace ds4::format {

void decode_f32(const std::byte* row, size_t elements, float* out) {
  std::memcpy(out, row, elements * sizeof(float));
}

void encode_f32(const float* row, size_t elements, std::byte* out) {
  std::memcpy(out, row, elements * sizeof(float));
}

void decode_f16(const std::byte* row, size_t elements, float* out) {
  for (size_t i = 0; i < elements; ++i) {
    uint16_t half;
    std::memcpy(&half, row + 2 * i, 2);
    out[i] = f16_to_f32(half);
  }
}

void encode_f16(const float* row, size_t elements, std::byte* out) {
  for (size_t i = 0; i < elements; ++i) {
    const uint16_t half = f32_to_f16(row[i]);
    std::memcpy(out + 2 * i, &half, 2);
  }
}

float dot_f16(const std::byte* row, const float* x, size_t elements) {
  float sum = 0;
  for (size_t i = 0; i < elements; ++i) {
    uint16_t half;
    std::memcpy(&half, row + 2 * i, 2);
    sum += f16_to_f32(half) * x[i];
  }
  return sum;
}

}  // namespace ds4::format
