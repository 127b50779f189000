// Q2_K: blocks of 256 two-bit codes; sixteen sub-blocks of 16 with a four-bit scale and a four-bit minimum
// each.
//
// Layout, 84 bytes: 0 scales[16] (low nibble scale, high nibble minimum), 16 qs[64], 80 d (F16), 82 dmin
// (F16). Element i: q = qs[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3. Value = d * (scale & 15) * q -
// dmin * (scale >> 4) with scale = scales[i / 16].
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/q8_k.hpp"

namespace ds4::format {

struct [[gnu::packed]] BlockQ2_K {
  static constexpr size_t kElements = 256;
  uint8_t scales[16];
  uint8_t qs[64];
  uint16_t d;     // F16
  uint16_t dmin;  // F16
};
static_assert(sizeof(BlockQ2_K) == 84);

void decode_q2_k(const std::byte* row, size_t elements, float* out);
/// Searches scales that keep the error small (docs/quantize.md §2.4), weighed by `importance` of each column
/// if it is not null. Preconditions: those of encode_weighted_row().
void encode_q2_k(const float* row, size_t elements, const float* importance, std::byte* out);
/// Exact integers within a block, blocks summed in order.
float dot_q2_k(const std::byte* row, const BlockQ8_K* x, size_t elements);

}  // namespace ds4::format
