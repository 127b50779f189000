// What the backends share of choosing a token: a summary of a row of logits, and the draw on the CPU.
#pragma once

#include <span>

#include "ds4/sampling.hpp"
#include "sampling/logit_summary.hpp"
#include "sampling/weight.hpp"

namespace ds4::sampling {

LogitSummary summarize(std::span<const float> logits);

DrawRule normalized(const SamplingParams& params);
Softmax make_softmax(float maximum, const DrawRule& rule);
inline bool is_greedy(const SamplingParams& params) {
  return !(params.temperature > 0);
}

/// Draws with the random number `uniform`, in [0, 1) with 24 bits; -1 if no logit is finite. The parameters
/// must not be greedy.
Token draw(std::span<const float> logits, const SamplingParams& params, float uniform);

}  // namespace ds4::sampling
