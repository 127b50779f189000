#include "format/q2_k.hpp"

#include <cstring>

#include "format/f16.hpp"

namespace ds4::format {
namespace {

int code_at(const BlockQ2_K& block, size_t i) {
  return block.qs[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
}

}  // namespace

void decode_q2_k(const std::byte* row, size_t elements, float* out) {
  for (size_t base = 0; base < elements; base += BlockQ2_K::kElements, row += sizeof(BlockQ2_K)) {
    BlockQ2_K block;
    std::memcpy(&block, row, sizeof block);
    for (size_t g = 0; g < 16; ++g) {
      const float scale = f16_to_f32(block.d) * static_cast<float>(block.scales[g] & 15);
      const float min = f16_to_f32(block.dmin) * static_cast<float>(block.scales[g] >> 4);
      for (size_t i = 16 * g; i < 16 * g + 16; ++i) {
        out[base + i] = scale * static_cast<float>(code_at(block, i)) - min;
      }
    }
  }
}

float dot_q2_k(const std::byte* row, const BlockQ8_K* x, size_t elements) {
  float sum = 0;
  for (size_t base = 0; base < elements; base += BlockQ2_K::kElements, row += sizeof(BlockQ2_K), ++x) {
    BlockQ2_K block;
    std::memcpy(&block, row, sizeof block);
    int32_t products = 0, offsets = 0;
    for (size_t g = 0; g < 16; ++g) {
      int32_t codes = 0;
      for (size_t i = 16 * g; i < 16 * g + 16; ++i) codes += code_at(block, i) * x->q[i];
      products += (block.scales[g] & 15) * codes;
      offsets += (block.scales[g] >> 4) * x->sums[g];
    }
    sum += x->d * (f16_to_f32(block.d) * static_cast<float>(products) -
                   f16_to_f32(block.dmin) * static_cast<float>(offsets));
  }
  return sum;
}

}  // namespace ds4::format
