// Speculative decoding: a drafter proposes tokens, the model checks several at once. Never changes what is
// generated (docs/speculation.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ds4 {

/// The most tokens that are drafted at a time.
inline constexpr size_t max_draft_depth = 15;

struct SpeculationOptions {
  size_t depth = 0;         // drafts at a time at most; 0: none
  float min_margin = 3.0f;  // a further draft counts if its logit exceeds the next by this much
  bool adaptive = true;     // fewer drafts, or none, when they do not pay; off: always `depth`
};

/// What speculation did so far.
struct SpeculationStats {
  uint64_t plain_steps = 0;   // of one token
  uint64_t draft_steps = 0;   // with at least one draft
  uint64_t draft_tokens = 0;  // tokens that draft steps gave, of which one each would have come without
  std::array<uint64_t, max_draft_depth> drafted{};  // by place: first draft of a step, second, ...
  std::array<uint64_t, max_draft_depth> accepted{};
  std::string failure;  // why the drafter is not used any more; empty if nothing is wrong with it
  double plain_seconds = 0;
  double draft_seconds = 0;  // drafting and checking

  /// Tokens of a draft step, 0 before the first.
  double tokens_per_step() const;
  /// Time that the tokens of the draft steps would have taken one by one, over the time they took; 0 until
  /// both kinds of steps were seen.
  double speedup() const;
};

}  // namespace ds4
