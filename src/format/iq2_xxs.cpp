#include "format/iq2_xxs.hpp"

#include <cstring>

#include "format/f16.hpp"
#include "format/iq2_xxs_tables.hpp"

namespace ds4::format {
namespace {

/// The 32 signed levels of a group.
void group_levels(const BlockIQ2_XXS::Group& group, int8_t* levels) {
  for (int octet = 0; octet < 4; ++octet) {
    const uint64_t grid = kIq2XxsGrid[group.grid[octet]];
    const uint8_t signs = kIq2XxsSigns[group.signs_and_scale >> (7 * octet) & 127];
    for (int j = 0; j < 8; ++j) {
      const int level = static_cast<int>(grid >> (8 * j) & 255);
      levels[8 * octet + j] = static_cast<int8_t>(signs >> j & 1 ? -level : level);
    }
  }
}

}  // namespace

void decode_iq2_xxs(const std::byte* row, size_t elements, float* out) {
  for (size_t base = 0; base < elements; base += BlockIQ2_XXS::kElements, row += sizeof(BlockIQ2_XXS)) {
    BlockIQ2_XXS block;
    std::memcpy(&block, row, sizeof block);
    for (size_t b = 0; b < 8; ++b) {
      const uint32_t s = block.groups[b].signs_and_scale >> 28;
      const float scale = f16_to_f32(block.d) * static_cast<float>(2 * s + 1) * 0.125f;
      int8_t levels[32];
      group_levels(block.groups[b], levels);
      for (size_t i = 0; i < 32; ++i) out[base + 32 * b + i] = scale * static_cast<float>(levels[i]);
    }
  }
}

float dot_iq2_xxs(const std::byte* row, const BlockQ8_K* x, size_t elements) {
  float sum = 0;
  for (size_t base = 0; base < elements; base += BlockIQ2_XXS::kElements, row += sizeof(BlockIQ2_XXS), ++x) {
    BlockIQ2_XXS block;
    std::memcpy(&block, row, sizeof block);
    int32_t products = 0;
    for (size_t b = 0; b < 8; ++b) {
      int8_t levels[32];
      group_levels(block.groups[b], levels);
      int32_t codes = 0;
      for (size_t i = 0; i < 32; ++i) codes += levels[i] * x->q[32 * b + i];
      products += static_cast<int32_t>(2 * (block.groups[b].signs_and_scale >> 28) + 1) * codes;
    }
    sum += 0.125f * f16_to_f32(block.d) * x->d * static_cast<float>(products);
  }
  return sum;
}

}  // namespace ds4::format
