// The context lengths at which speed is measured.
#pragma once

#include <cstdint>

namespace ds4::bench {

struct FrontierSteps {
  uint64_t first = 2048;
  uint64_t last = 32768;
  uint64_t increment = 2048;  // tokens, where multiplier = 1
  double multiplier = 1.0;
};

/// The frontier after `current`; the last one is exactly `last`. Precondition: current < last, and
/// increment > 0 or multiplier > 1.
uint64_t next_frontier(const FrontierSteps& steps, uint64_t current);

}  // namespace ds4::bench
