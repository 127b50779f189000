// The first look at a row of logits: what later steps may skip.
#pragma once

#include <cstddef>
#include <span>

namespace ds4::sampling {

inline constexpr size_t block_logits = 64;

/// The largest finite logit of every block of 64, -infinity where there is none; `maxima` has room for the
/// last, shorter block too. True if any logit is NaN.
bool block_maxima(std::span<const float> logits, std::span<float> maxima);

}  // namespace ds4::sampling
