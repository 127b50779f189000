// Blocks of 64 logits: their maxima, which tell what later steps may skip, and their weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sampling/weight.hpp"

namespace ds4::sampling {

inline constexpr size_t block_logits = 64;

/// The largest finite logit of every block of 64, -infinity where there is none; `maxima` has room for the
/// last, shorter block too. True if any logit is NaN.
bool block_maxima(std::span<const float> logits, std::span<float> maxima);

/// Sum of the weights of a block of at most 64 logits, of those with at least `min_p` of the best token's
/// probability.
uint64_t block_weight(std::span<const float> block, const Softmax& softmax, float min_p);

}  // namespace ds4::sampling
