// Q4_K: blocks of 256 four-bit codes; eight sub-blocks of 32 with a six-bit scale and a six-bit minimum each.
//
// Layout, 144 bytes: 0 d (F16), 2 dmin (F16), 4 scales[12], 16 qs[128].
// Element i is in byte qs[32 * (i / 64) + i % 32], low nibble when i % 64 < 32, high nibble otherwise.
// Value = d * scale[j] * q - dmin * min[j] with j = i / 32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/q8_k.hpp"

namespace ds4::format {

struct [[gnu::packed]] BlockQ4_K {
  static constexpr size_t kElements = 256;
  uint16_t d;     // F16
  uint16_t dmin;  // F16
  uint8_t scales[12];
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ4_K) == 144);

/// The twelve packed bytes as eight scales and eight minima, 0..63.
inline void unpack_q4_k_scales(const uint8_t* packed, uint8_t* scales, uint8_t* mins) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = packed[j] & 63;
    mins[j] = packed[j + 4] & 63;
    scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | (packed[j] >> 6) << 4);
    mins[j + 4] = static_cast<uint8_t>(packed[j + 8] >> 4 | (packed[j + 4] >> 6) << 4);
  }
}

void decode_q4_k(const std::byte* row, size_t elements, float* out);
/// Searches scales that keep the error small (docs/quantize.md §2.3), weighed by `importance` of each column
/// if it is not null. Preconditions: those of encode_weighted_row().
void encode_q4_k(const float* row, size_t elements, const float* importance, std::byte* out);
/// Exact integers within a block, blocks summed in order.
float dot_q4_k(const std::byte* row, const BlockQ8_K* x, size_t elements);

}  // namespace ds4::format
