// Q4_K rows from F32, through Highway (docs/quantize.md §2.3).
// Layout: two blocks at a time, their sixteen sub-blocks of 32 in lanes.
// Preconditions: finite values of at most largest_encodable(), importance from prepare_importance() or none.
// Cost: 38 candidates for each sub-block (22 without importance), some 20 operations an element each.
// Why: the search needs sums in order; sub-blocks side by side keep them, and fill registers of any width.
#include <cstring>

#include "format/q4_k.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "format/q4_k_encode.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "format/k_quant_encode.hpp"

HWY_BEFORE_NAMESPACE();
namespace ds4::format::HWY_NAMESPACE {

constexpr size_t kSubBlock4 = 32, kSubBlocks4 = 8;

/// w = root mean square of the sub-block + |x|
inline void WeighByValueQ4K(Segment& segment) {
  const AllLanes d;
  for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
    auto squares = hn::Zero(d);
    for (size_t i = 0; i < kSubBlock4; ++i) {
      const auto v = hn::LoadU(d, segment.x + i * kLanes + l);
      squares = hn::Add(squares, hn::Mul(v, v));
    }
    const auto rms = hn::Sqrt(hn::Div(squares, hn::Set(d, static_cast<float>(kSubBlock4))));
    for (size_t i = 0; i < kSubBlock4; ++i) {
      const auto v = hn::LoadU(d, segment.x + i * kLanes + l);
      hn::StoreU(hn::Add(rms, hn::Abs(v)), d, segment.w + i * kLanes + l);
    }
  }
}

inline BlockQ4_K PackQ4K(const BlockScales& scales, const Segment& segment, size_t lane) {
  BlockQ4_K block{};
  block.d = scales.d;
  block.dmin = scales.dmin;
  for (size_t j = 0; j < 4; ++j) {
    const uint8_t scale = scales.scales[j + 4], minimum = scales.minima[j + 4];
    block.scales[j] = static_cast<uint8_t>(scales.scales[j] | (scale >> 4) << 6);
    block.scales[j + 4] = static_cast<uint8_t>(scales.minima[j] | (minimum >> 4) << 6);
    block.scales[j + 8] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
  }
  for (size_t pair = 0; pair < 4; ++pair) {
    for (size_t i = 0; i < kSubBlock4; ++i) {
      const float* codes = segment.codes + i * kLanes + lane + 2 * pair;
      block.qs[32 * pair + i] =
          static_cast<uint8_t>(static_cast<int>(codes[0]) | static_cast<int>(codes[1]) << 4);
    }
  }
  return block;
}

void EncodeQ4K(const float* row, size_t elements, const float* importance, std::byte* out) {
  const RangeSearch search = importance ? RangeSearch{kSubBlock4, 15, -0.9f, 0.05f, 36, false}
                                        : RangeSearch{kSubBlock4, 15, -1.0f, 0.1f, 20, false};
  constexpr size_t block_elements = BlockQ4_K::kElements;
  Segment segment;
  for (size_t base = 0; base < elements; base += 2 * block_elements) {
    const size_t blocks = std::min<size_t>(2, (elements - base) / block_elements);
    ToLanes(row + base, kSubBlock4, blocks * kSubBlocks4, segment.x);
    if (importance) {
      float energies[kLanes] = {};
      for (size_t b = 0; b < blocks; ++b) {
        const float squares = SumOfSquares(row + base + b * block_elements, block_elements);
        std::fill_n(energies + b * kSubBlocks4, kSubBlocks4, 2 * squares / block_elements);
      }
      WeighByImportance(importance + base, kSubBlock4, blocks * kSubBlocks4, energies, segment);
    } else {
      WeighByValueQ4K(segment);
    }
    FitSegment(search, segment);
    BlockScales scales[2];
    for (size_t b = 0; b < 2; ++b)
      scales[b] = FitBlock(importance != nullptr, b * kSubBlocks4, kSubBlocks4, 63, segment);
    Recode(kSubBlock4, 15, segment);
    for (size_t b = 0; b < blocks; ++b, out += sizeof(BlockQ4_K)) {
      const BlockQ4_K block = PackQ4K(scales[b], segment, b * kSubBlocks4);
      std::memcpy(out, &block, sizeof block);
    }
  }
}

}  // namespace ds4::format::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::format {

HWY_EXPORT(EncodeQ4K);

void encode_q4_k(const float* row, size_t elements, const float* importance, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(EncodeQ4K)(row, elements, importance, out);
}

}  // namespace ds4::format
#endif
