// Maxima of blocks, through Highway.
// Layout: F32 logits to one maximum for each 64 of them.
// Preconditions: none; the last block may be shorter.
// Cost: one pass, bound by the memory that holds the logits.
// Why: a choice needs exp() for a handful of tokens, and this tells where they are.
#include "sampling/block_maxima.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sampling/block_maxima.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ds4::sampling::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

bool BlockMaxima(const float* logits, size_t count, float* maxima) {
  using D = hn::CappedTag<float, 16>;
  const D d;
  const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto largest_finite = hn::Set(d, std::numeric_limits<float>::max());
  auto nan = hn::IsNaN(none);
  const size_t blocks = count / block_logits;
  for (size_t b = 0; b < blocks; ++b) {
    auto maximum = none;
    for (size_t i = 0; i < block_logits; i += hn::Lanes(d)) {
      const auto v = hn::LoadU(d, logits + b * block_logits + i);
      nan = hn::Or(nan, hn::IsNaN(v));
      maximum = hn::Max(maximum, hn::IfThenElse(hn::Le(hn::Abs(v), largest_finite), v, none));
    }
    maxima[b] = hn::GetLane(hn::MaxOfLanes(d, maximum));
  }
  bool any_nan = !hn::AllFalse(d, nan);
  if (blocks * block_logits == count) return any_nan;
  float& last = maxima[blocks] = -std::numeric_limits<float>::infinity();
  for (size_t i = blocks * block_logits; i < count; ++i) {
    any_nan |= std::isnan(logits[i]);
    if (std::isfinite(logits[i])) last = std::max(last, logits[i]);
  }
  return any_nan;
}

}  // namespace ds4::sampling::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::sampling {

HWY_EXPORT(BlockMaxima);

bool block_maxima(std::span<const float> logits, std::span<float> maxima) {
  return HWY_DYNAMIC_DISPATCH(BlockMaxima)(logits.data(), logits.size(), maxima.data());
}

}  // namespace ds4::sampling
#endif
