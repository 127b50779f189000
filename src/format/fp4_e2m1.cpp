#include "format/fp4_e2m1.hpp"

#include <array>
#include <cstring>

#include "format/fp8_e4m3.hpp"
#include "format/mxfp4.hpp"

namespace ds4::format {
namespace {

uint8_t code_at(const std::byte* codes, size_t i) {
  const auto byte = static_cast<uint8_t>(codes[i / 2]);
  return i % 2 == 0 ? byte & 15 : byte >> 4;
}

/// The two values of each byte.
using Pairs = std::array<std::array<float, 2>, 256>;
constexpr Pairs pairs_of_bytes() {
  Pairs pairs{};
  for (size_t byte = 0; byte < pairs.size(); ++byte)
    pairs[byte] = {kE2m1Values[byte & 15], kE2m1Values[byte >> 4]};
  return pairs;
}
constexpr Pairs pairs = pairs_of_bytes();

}  // namespace

void decode_fp4_e2m1(const std::byte* codes, const std::byte* scales, size_t elements, float* out) {
  for (size_t i = 0; i + 1 < elements; i += 2) {
    const float scale = e8m0_to_f32(static_cast<uint8_t>(scales[i / kFp4Block]));
    const auto& pair = pairs[static_cast<uint8_t>(codes[i / 2])];
    out[i] = pair[0] * scale;
    out[i + 1] = pair[1] * scale;
  }
}

void repack_fp4_e2m1_to_mxfp4(const std::byte* codes, const std::byte* scales, size_t elements,
                              std::byte* out) {
  for (size_t i = 0; i < elements; i += kFp4Block, out += sizeof(BlockMXFP4)) {
    BlockMXFP4 block;
    block.exponent = static_cast<uint8_t>(scales[i / kFp4Block]);
    for (size_t j = 0; j < 16; ++j) {
      block.qs[j] = static_cast<uint8_t>(code_at(codes, i + j) | code_at(codes, i + j + 16) << 4);
    }
    std::memcpy(out, &block, sizeof block);
  }
}

}  // namespace ds4::format
