#include "format/q4_k.hpp"

#include <cstring>

#include "format/f16.hpp"

namespace ds4::format {
namespace {

int code_at(const BlockQ4_K& block, size_t i) {
  const uint8_t byte = block.qs[32 * (i / 64) + i % 32];
  return i % 64 < 32 ? byte & 15 : byte >> 4;
}

}  // namespace

void decode_q4_k(const std::byte* row, size_t elements, float* out) {
  for (size_t base = 0; base < elements; base += BlockQ4_K::kElements, row += sizeof(BlockQ4_K)) {
    BlockQ4_K block;
    std::memcpy(&block, row, sizeof block);
    uint8_t scales[8], mins[8];
    unpack_q4_k_scales(block.scales, scales, mins);
    for (size_t j = 0; j < 8; ++j) {
      const float scale = f16_to_f32(block.d) * static_cast<float>(scales[j]);
      const float min = f16_to_f32(block.dmin) * static_cast<float>(mins[j]);
      for (size_t i = 32 * j; i < 32 * j + 32; ++i) {
        out[base + i] = scale * static_cast<float>(code_at(block, i)) - min;
      }
    }
  }
}

float dot_q4_k(const std::byte* row, const BlockQ8_K* x, size_t elements) {
  float sum = 0;
  for (size_t base = 0; base < elements; base += BlockQ4_K::kElements, row += sizeof(BlockQ4_K), ++x) {
    BlockQ4_K block;
    std::memcpy(&block, row, sizeof block);
    uint8_t scales[8], mins[8];
    unpack_q4_k_scales(block.scales, scales, mins);
    int32_t products = 0, offsets = 0;
    for (size_t j = 0; j < 8; ++j) {
      int32_t codes = 0;
      for (size_t i = 32 * j; i < 32 * j + 32; ++i) codes += code_at(block, i) * x->q[i];
      products += scales[j] * codes;
      offsets += mins[j] * (x->sums[2 * j] + x->sums[2 * j + 1]);
    }
    sum += x->d * (f16_to_f32(block.d) * static_cast<float>(products) -
                   f16_to_f32(block.dmin) * static_cast<float>(offsets));
  }
  return sum;
}

}  // namespace ds4::format
