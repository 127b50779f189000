// MXFP4: blocks of 32 E2M1 codes with one E8M0 scale.
//
// Layout, 17 bytes: 0 exponent (E8M0), 1 qs[16]. Element j < 16 is the low nibble of qs[j], element j + 16
// its high nibble. Value = E2M1(code) * 2^(exponent - 127) = doubled integer code * 2^(exponent - 128).
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/q8_0.hpp"

namespace ds4::format {

struct BlockMXFP4 {
  static constexpr size_t kElements = 32;
  uint8_t exponent;
  uint8_t qs[16];
};
static_assert(sizeof(BlockMXFP4) == 17);

/// 2^(exponent - 128): the scale of the doubled integers.
float mxfp4_doubled_scale(uint8_t exponent);

void decode_mxfp4(const std::byte* row, size_t elements, float* out);
/// The scale follows from the largest magnitude; with `importance` of each column the two next to it are
/// tried as well (docs/quantize.md §2.2). Any finite values.
void encode_mxfp4(const float* row, size_t elements, const float* importance, std::byte* out);
/// Exact integers within a block, blocks summed in order.
float dot_mxfp4(const std::byte* row, const ActivationQ8_0* x, size_t elements);

}  // namespace ds4::format
