// Tokens in the order of choice.
#pragma once

#include <cstddef>
#include <span>

#include "ds4/token.hpp"

namespace ds4::sampling {

struct Candidate {
  float logit = 0;
  Token token = 0;
};

/// The order of choice: larger logit first, then lower id.
inline bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

/// Puts the `out.size()` best finite logits into `out`, best first, and returns how many there are. `maxima`
/// as from block_maxima().
size_t best_candidates(std::span<const float> logits, std::span<const float> maxima,
                       std::span<Candidate> out);

}  // namespace ds4::sampling
