// What the encoders of Q4_K and Q2_K share: a segment of sub-blocks, searched in lanes. Included once for
// each Highway target, like lane_search.hpp. NOLINTBEGIN(llvm-header-guard)
#if defined(DS4_FORMAT_K_QUANT_ENCODE_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef DS4_FORMAT_K_QUANT_ENCODE_HPP
#undef DS4_FORMAT_K_QUANT_ENCODE_HPP
#else
#define DS4_FORMAT_K_QUANT_ENCODE_HPP
#endif
// NOLINTEND(llvm-header-guard)

#include <cmath>

#include "format/f16.hpp"
#include "format/lane_search.hpp"

HWY_BEFORE_NAMESPACE();
namespace ds4::format::HWY_NAMESPACE {

/// Up to kLanes sub-blocks of at most 32 elements, one in each lane.
struct Segment {
  HWY_ALIGN float x[32 * kLanes];
  HWY_ALIGN float w[32 * kLanes];
  HWY_ALIGN float codes[32 * kLanes];
  HWY_ALIGN float scales[kLanes], minima[kLanes], sums[kLanes];  // sums of w
  HWY_ALIGN float steps[kLanes], offsets[kLanes];                // as decoded: step * code - offset
};

/// The integers and the two numbers that scales and minima of a block are multiples of.
struct BlockScales {
  uint16_t d, dmin;  // F16
  uint8_t scales[16], minima[16];
};

/// w = importance * sqrt(energy + x^2), energy of a block at [lane].
inline void WeighByImportance(const float* importance, size_t count, size_t lanes, const float* energies,
                              Segment& segment) {
  const AllLanes d;
  ToLanes(importance, count, lanes, segment.w);
  for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
    const auto energy = hn::LoadU(d, energies + l);
    for (size_t i = 0; i < count; ++i) {
      const auto v = hn::LoadU(d, segment.x + i * kLanes + l);
      const auto root = hn::Sqrt(hn::Add(energy, hn::Mul(v, v)));
      float* w = segment.w + i * kLanes + l;
      hn::StoreU(hn::Mul(hn::LoadU(d, w), root), d, w);
    }
  }
}

inline void FitSegment(const RangeSearch& search, Segment& segment) {
  const AllLanes d;
  for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
    FitRange(d, search, segment.x + l, segment.w + l, segment.codes + l, segment.scales + l,
             segment.minima + l);
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < search.count; ++i) {
      sum = hn::Add(sum, hn::LoadU(d, segment.w + i * kLanes + l));
    }
    hn::StoreU(sum, d, segment.sums + l);
  }
}

/// Integers 0..top for `count` non-negative numbers, and the number that they are multiples of.
inline float FitScales(bool weighted, size_t count, float top, const float* numbers, const float* sums,
                       uint8_t* integers) {
  HWY_ALIGN float codes[kLanes];
  float unit = 0;
  if (weighted) {
    const OneLane d;
    unit = hn::GetLane(FitScale(d, count, 1, top, numbers, sums, codes));
  } else {
    const float largest = *std::max_element(numbers, numbers + count);
    const float inverse = largest > 0 ? top / largest : 0.0f;
    for (size_t j = 0; j < count; ++j) codes[j] = std::min(top, std::nearbyint(inverse * numbers[j]));
    unit = largest > 0 ? largest / top : 0.0f;
  }
  for (size_t j = 0; j < count; ++j) integers[j] = static_cast<uint8_t>(std::clamp(codes[j], 0.0f, top));
  return unit;
}

/// Scales of the block whose `count` sub-blocks begin at `lane`.
inline BlockScales FitBlock(bool weighted, size_t lane, size_t count, float top, Segment& segment) {
  BlockScales block;
  block.d =
      f32_to_f16(FitScales(weighted, count, top, segment.scales + lane, segment.sums + lane, block.scales));
  block.dmin =
      f32_to_f16(FitScales(weighted, count, top, segment.minima + lane, segment.sums + lane, block.minima));
  for (size_t j = 0; j < count; ++j) {
    segment.steps[lane + j] = f16_to_f32(block.d) * static_cast<float>(block.scales[j]);
    segment.offsets[lane + j] = f16_to_f32(block.dmin) * static_cast<float>(block.minima[j]);
  }
  return block;
}

/// The nearest codes for the scales as they are stored; where a scale is 0 those of the search stay.
inline void Recode(size_t count, float top_code, Segment& segment) {
  const AllLanes d;
  const auto top = hn::Set(d, top_code);
  for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
    const auto step = hn::LoadU(d, segment.steps + l), offset = hn::LoadU(d, segment.offsets + l);
    const auto some_step = hn::Ne(step, hn::Zero(d));
    const auto divisor = hn::IfThenElse(some_step, step, hn::Set(d, 1.0f));
    for (size_t i = 0; i < count; ++i) {
      float* codes = segment.codes + i * kLanes + l;
      const auto v = hn::Add(hn::LoadU(d, segment.x + i * kLanes + l), offset);
      const auto code = RoundToCode(d, hn::Div(v, divisor), top);
      hn::StoreU(hn::IfThenElse(some_step, code, hn::LoadU(d, codes)), d, codes);
    }
  }
}

/// Sum of squares, in order.
inline float SumOfSquares(const float* x, size_t count) {
  float sum = 0;
  for (size_t i = 0; i < count; ++i) sum += x[i] * x[i];
  return sum;
}

}  // namespace ds4::format::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
