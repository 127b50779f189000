#include "format/bf16.hpp"

#include <cstring>

namespace ds4::format {

void decode_bf16(const std::byte* row, size_t elements, float* out) {
  for (size_t i = 0; i < elements; ++i) {
    uint16_t value;
    std::memcpy(&value, row + 2 * i, 2);
    out[i] = bf16_to_f32(value);
  }
}

void encode_bf16(const float* row, size_t elements, std::byte* out) {
  for (size_t i = 0; i < elements; ++i) {
    const uint16_t value = f32_to_bf16(row[i]);
    std::memcpy(out + 2 * i, &value, 2);
  }
}

float dot_bf16(const std::byte* row, const float* x, size_t elements) {
  float sum = 0;
  for (size_t i = 0; i < elements; ++i) {
    uint16_t value;
    std::memcpy(&value, row + 2 * i, 2);
    sum += bf16_to_f32(value) * x[i];
  }
  return sum;
}

}  // namespace ds4::format
