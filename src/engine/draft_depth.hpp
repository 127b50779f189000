// How many tokens to draft next, from what drafts cost and how many were right.
#pragma once

#include <array>
#include <cstddef>

#include "ds4/speculation.hpp"

namespace ds4 {

/// Chooses the depth with the most expected tokens per second. Where that is none, it tries a single draft
/// now and then, less and less often while none is right.
class DraftDepth {
 public:
  explicit DraftDepth(const SpeculationOptions& options);

  /// Drafts to ask for in the next step.
  size_t choose();
  void observe_plain(double seconds);
  /// A step with `drafted` > 0 drafts of which the first `accepted` were right.
  void observe(size_t drafted, size_t accepted, double draft_seconds, double verify_seconds);

 private:
  struct Mean {  // of the newest observations
    double value = 0;
    size_t count = 0;
    void add(double observation);
  };
  /// Seconds of something that is done again and again. The first time is left out, since it prepares what
  /// later ones use (a GPU's graph for that number of rows); a hiccup counts as a few times the mean.
  struct Cost : Mean {
    bool prepared = false;
    void observe(double seconds);
  };
  double verify_estimate(size_t rows) const;
  size_t best_depth() const;

  size_t depth_;
  bool adaptive_;
  Cost plain_, draft_;                            // of a plain step, of one draft
  std::array<Cost, max_draft_depth + 2> verify_;  // by rows
  std::array<Mean, max_draft_depth> right_;       // share of right ones among drafts whose predecessors were
  size_t pause_ = 0, until_try_ = 0;              // plain steps between tries, and still to go
  size_t since_plain_ = 0;                        // draft steps
};

}  // namespace ds4
