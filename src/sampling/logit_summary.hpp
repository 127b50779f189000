// What one look at a row of logits tells.
#pragma once

#include "ds4/token.hpp"

namespace ds4::sampling {

struct LogitSummary {
  Token best = -1;    // first index of the largest finite logit, -1 if there is none
  float maximum = 0;  // its value
  bool has_nan = false;
};

}  // namespace ds4::sampling
