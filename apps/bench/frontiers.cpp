#include "frontiers.hpp"

#include <algorithm>
#include <cmath>

namespace ds4::bench {

uint64_t next_frontier(const FrontierSteps& steps, uint64_t current) {
  if (steps.multiplier == 1.0) return std::min(steps.last, current + steps.increment);
  const double grown = std::ceil(static_cast<double>(current) * steps.multiplier);
  if (grown >= static_cast<double>(steps.last)) return steps.last;
  return std::max(current + 1, static_cast<uint64_t>(grown));
}

}  // namespace ds4::bench
