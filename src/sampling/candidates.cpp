#include "sampling/candidates.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "sampling/blocks.hpp"

namespace ds4::sampling {

size_t best_candidates(std::span<const float> logits, std::span<const float> maxima,
                       std::span<Candidate> out) {
  if (out.empty()) return 0;
  // As many blocks as candidates are wanted hold a logit that is no less than this.
  float least = -std::numeric_limits<float>::infinity();
  if (out.size() <= maxima.size()) {
    std::vector<float> order(maxima.begin(), maxima.end());
    const auto last = order.begin() + static_cast<ptrdiff_t>(out.size() - 1);
    std::nth_element(order.begin(), last, order.end(), std::greater<>());
    least = *last;
  }
  std::vector<Candidate> found;
  for (size_t b = 0; b < maxima.size(); ++b) {
    if (maxima[b] < least) continue;
    const size_t begin = b * block_logits, end = std::min(logits.size(), begin + block_logits);
    for (size_t i = begin; i < end; ++i) {
      if (logits[i] >= least && std::isfinite(logits[i])) found.push_back({logits[i], static_cast<Token>(i)});
    }
  }
  const size_t count = std::min(found.size(), out.size());
  const auto end = found.begin() + static_cast<ptrdiff_t>(count);
  if (end != found.end()) std::nth_element(found.begin(), end, found.end(), better);
  std::sort(found.begin(), end, better);
  std::copy(found.begin(), end, out.begin());
  return count;
}

}  // namespace ds4::sampling
