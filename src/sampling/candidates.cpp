#include "sampling/candidates.hpp"

#include <algorithm>

#include "sampling/block_maxima.hpp"
#include "sampling/weight.hpp"

namespace ds4::sampling {

size_t best_candidates(std::span<const float> logits, std::span<const float> maxima,
                       std::span<Candidate> out) {
  size_t count = 0;  // out[0, count) is a heap whose front is the worst kept candidate
  if (out.empty()) return 0;
  for (size_t b = 0; b < maxima.size(); ++b) {
    if (count == out.size() && !(maxima[b] > out.front().logit)) continue;
    const size_t begin = b * block_logits, end = std::min(logits.size(), begin + block_logits);
    for (size_t i = begin; i < end; ++i) {
      if (!is_finite(logits[i])) continue;
      const Candidate candidate{logits[i], static_cast<Token>(i)};
      if (count < out.size()) {
        out[count++] = candidate;
        std::push_heap(out.begin(), out.begin() + static_cast<ptrdiff_t>(count), better);
      } else if (better(candidate, out.front())) {
        std::pop_heap(out.begin(), out.end(), better);
        out.back() = candidate;
        std::push_heap(out.begin(), out.end(), better);
      }
    }
  }
  std::sort_heap(out.begin(), out.begin() + static_cast<ptrdiff_t>(count), better);
  return count;
}

}  // namespace ds4::sampling
