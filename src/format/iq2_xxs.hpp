// IQ2_XXS: blocks of 256; every octet is one of 256 grid points (levels 8, 25, 43) with one of 128 sign
// patterns.
//
// Layout, 66 bytes: 0 d (F16), then eight groups of 32 elements, 8 bytes each: four grid indices (u8), then a
// u32 whose bits 7l..7l+6 are the sign index of octet l and whose bits 28..31 are s. Value = d * (2 s + 1) /
// 8 * sign * level; element j of an octet is byte j of the grid entry, bit j of the signs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/q8_k.hpp"

namespace ds4::format {

struct [[gnu::packed]] BlockIQ2_XXS {
  static constexpr size_t kElements = 256;
  struct [[gnu::packed]] Group {
    uint8_t grid[4];
    uint32_t signs_and_scale;
  };
  uint16_t d;  // F16
  Group groups[8];
};
static_assert(sizeof(BlockIQ2_XXS) == 66);

void decode_iq2_xxs(const std::byte* row, size_t elements, float* out);
/// Searches scales, grid entries and signs that keep the error small (docs/quantize.md §2.5), weighed by
/// `importance` of each column, which must be given. Preconditions: those of encode_weighted_row().
void encode_iq2_xxs(const float* row, size_t elements, const float* importance, std::byte* out);
/// Exact integers within a block, blocks summed in order.
float dot_iq2_xxs(const std::byte* row, const BlockQ8_K* x, size_t elements);

}  // namespace ds4::format
