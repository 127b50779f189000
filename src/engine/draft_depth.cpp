#include "engine/draft_depth.hpp"

#include <algorithm>

namespace ds4 {
namespace {

constexpr size_t memory = 16;               // observations that a mean remembers
constexpr size_t plain_steps_at_first = 2;  // to know what a draft step is compared with
constexpr size_t first_pause = 8, longest_pause = 256;
constexpr size_t draft_steps_in_a_row = 64;  // then a plain one, whose cost changes as the text grows
constexpr double hiccup = 3;                 // times the mean is the most that an observation counts
constexpr double hoped_right = 0.75;         // share of right drafts before there are any
// What a row more costs before it was measured, in plain steps: experts differ from row to row, the rest is
// shared.
constexpr double row_cost = 0.15, draft_cost = 0.1;

}  // namespace

void DraftDepth::Mean::add(double observation) {
  count = std::min(count + 1, memory);
  value += (observation - value) / static_cast<double>(count);
}

void DraftDepth::Cost::observe(double seconds) {
  if (prepared) add(count > 0 ? std::min(seconds, hiccup * value) : seconds);
  prepared = true;
}

DraftDepth::DraftDepth(const SpeculationOptions& options)
    : depth_(std::min(options.depth, max_draft_depth)), adaptive_(options.adaptive) {
  for (Mean& right : right_) right = {hoped_right, 2};
}

double DraftDepth::verify_estimate(size_t rows) const {
  size_t known = rows;
  while (known > 1 && verify_[known].count == 0) --known;
  const double measured = known > 1 ? verify_[known].value : plain_.value;
  const double estimate = measured + row_cost * plain_.value * static_cast<double>(rows - known);
  // Whatever a disturbed measurement says, rows together cost no less than one and no more than one by one.
  return std::clamp(estimate, plain_.value, plain_.value * static_cast<double>(rows));
}

size_t DraftDepth::best_depth() const {
  const double one_draft = draft_.count > 0 ? draft_.value : draft_cost * plain_.value;
  size_t best = 0;
  double tokens = 1, chance = 1, most = 1 / plain_.value;
  for (size_t depth = 1; depth <= depth_; ++depth) {
    chance *= right_[depth - 1].value;
    tokens += chance;
    const double rate = tokens / (static_cast<double>(depth) * one_draft + verify_estimate(depth + 1));
    if (rate > most) {
      most = rate;
      best = depth;
    }
  }
  return best;
}

size_t DraftDepth::choose() {
  if (!adaptive_ || depth_ == 0) return depth_;
  if (plain_.count < plain_steps_at_first) return 0;
  if (until_try_ > 0) {
    --until_try_;
    return 0;
  }
  const size_t best = best_depth();
  if (best > 0) {
    pause_ = 0;
    if (++since_plain_ <= draft_steps_in_a_row) return best;
    since_plain_ = 0;
    return 0;
  }
  const bool just_paused = pause_ > 0;
  pause_ = std::clamp(2 * pause_, first_pause, longest_pause);
  until_try_ = pause_;
  return just_paused ? 1 : 0;
}

void DraftDepth::observe_plain(double seconds) {
  plain_.observe(seconds);
}

void DraftDepth::observe(size_t drafted, size_t accepted, double draft_seconds, double verify_seconds) {
  draft_.observe(draft_seconds / static_cast<double>(drafted));
  verify_[drafted + 1].observe(verify_seconds);
  for (size_t i = 0; i < std::min(drafted, accepted + 1); ++i) right_[i].add(i < accepted ? 1 : 0);
}

}  // namespace ds4
