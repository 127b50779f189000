// What the backends share of choosing a token: a summary of a row of logits, and the draw on the CPU.
#pragma once

#include <span>

#include "ds4/sampling.hpp"
#include "sampling/logit_summary.hpp"

namespace ds4::sampling {

LogitSummary summarize(std::span<const float> logits);

/// Parameters of a random choice within their ranges.
struct DrawRule {
  float temperature = 1;
  uint32_t top_k = 0;  // 0: off
  float top_p = 1;     // 1: off
  float min_p = 0;
};
DrawRule normalized(const SamplingParams& params);
inline bool is_greedy(const SamplingParams& params) {
  return !(params.temperature > 0);
}

/// Draws with the random number `uniform`, in [0, 1) with 24 bits; -1 if no logit is finite. The parameters
/// must not be greedy.
Token draw(std::span<const float> logits, const SamplingParams& params, float uniform);

}  // namespace ds4::sampling
