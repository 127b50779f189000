// Q2_K rows from F32, through Highway (docs/quantize.md §2.4).
// Layout: a block at a time, its sixteen sub-blocks of 16 in lanes.
// Preconditions: finite values of at most largest_encodable(), importance from prepare_importance() or none.
// Cost: 38 candidates for each sub-block (17 without importance), some 20 operations an element each.
// Why: as q4_k_encode.cpp.
#include <cstring>

#include "format/q2_k.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "format/q2_k_encode.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "format/k_quant_encode.hpp"

HWY_BEFORE_NAMESPACE();
namespace ds4::format::HWY_NAMESPACE {

constexpr size_t kSubBlock2 = 16, kSubBlocks2 = 16;

inline BlockQ2_K PackQ2K(const BlockScales& scales, const Segment& segment) {
  BlockQ2_K block{};
  block.d = scales.d;
  block.dmin = scales.dmin;
  for (size_t g = 0; g < kSubBlocks2; ++g) {
    block.scales[g] = static_cast<uint8_t>(scales.scales[g] | scales.minima[g] << 4);
    const size_t half = g / 8, shift = 2 * (g % 8 / 2), at = 32 * half + 16 * (g % 2);
    for (size_t i = 0; i < kSubBlock2; ++i) {
      const int code = static_cast<int>(segment.codes[i * kLanes + g]);
      block.qs[at + i] = static_cast<uint8_t>(block.qs[at + i] | code << shift);
    }
  }
  return block;
}

void EncodeQ2K(const float* row, size_t elements, const float* importance, std::byte* out) {
  const RangeSearch search = importance ? RangeSearch{kSubBlock2, 3, -0.9f, 0.05f, 36, false}
                                        : RangeSearch{kSubBlock2, 3, -0.5f, 0.1f, 15, true};
  constexpr size_t block_elements = BlockQ2_K::kElements;
  Segment segment;
  for (size_t base = 0; base < elements; base += block_elements, out += sizeof(BlockQ2_K)) {
    ToLanes(row + base, kSubBlock2, kSubBlocks2, segment.x);
    if (importance) {
      float energies[kLanes];
      std::fill_n(energies, kLanes, SumOfSquares(row + base, block_elements) / block_elements);
      WeighByImportance(importance + base, kSubBlock2, kSubBlocks2, energies, segment);
    } else {
      for (size_t i = 0; i < kSubBlock2 * kLanes; ++i) segment.w[i] = std::fabs(segment.x[i]);
    }
    FitSegment(search, segment);
    const BlockScales scales = FitBlock(importance != nullptr, 0, kSubBlocks2, 15, segment);
    Recode(kSubBlock2, 3, segment);
    const BlockQ2_K block = PackQ2K(scales, segment);
    std::memcpy(out, &block, sizeof block);
  }
}

}  // namespace ds4::format::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::format {

HWY_EXPORT(EncodeQ2K);

void encode_q2_k(const float* row, size_t elements, const float* importance, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(EncodeQ2K)(row, elements, importance, out);
}

}  // namespace ds4::format
#endif
