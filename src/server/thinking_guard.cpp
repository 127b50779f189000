#include "server/thinking_guard.hpp"

#include <algorithm>

namespace ds4::server {
namespace {

constexpr size_t min_budget_for_nudge = 128;

}  // namespace

bool LoopDetector::push(Token token) {
  bool loop = false;
  for (size_t period = 1; period <= std::min(count_, max_period); ++period) {
    size_t& run = agreement_[period];
    run = last_[(count_ - period) % max_period] == token ? run + 1 : 0;
    loop = loop || run + period >= std::max(min_tokens_, min_repeats * period);
  }
  last_[count_ % max_period] = token;
  ++count_;
  return loop;
}

ThinkingGuard::Action ThinkingGuard::accept(Token token, bool line_end) {
  ++used_;
  looped_ = loop_.push(token);
  if (used_ >= budget_ || looped_) return Action::close;
  if (!nudged_ && budget_ >= min_budget_for_nudge && used_ >= nudge_from() && line_end) {
    nudged_ = true;
    return Action::nudge;
  }
  return Action::none;
}

size_t ThinkingGuard::free_tokens() const {
  const size_t until = !nudged_ && used_ < nudge_from() ? nudge_from() : budget_;
  return std::max<size_t>(1, until - std::min(until, used_));
}

}  // namespace ds4::server
