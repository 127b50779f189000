// One step of speculative decoding (docs/speculation.md).
#include <algorithm>
#include <chrono>

#include "backend/checks.hpp"
#include "base/error.hpp"
#include "engine/session_impl.hpp"
#include "sampling/draw.hpp"

namespace ds4 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

double SpeculationStats::tokens_per_step() const {
  return draft_steps == 0 ? 0 : static_cast<double>(draft_tokens) / static_cast<double>(draft_steps);
}

double SpeculationStats::speedup() const {
  if (plain_steps == 0 || draft_steps == 0 || draft_seconds <= 0) return 0;
  const double plain = plain_seconds / static_cast<double>(plain_steps);
  return plain * static_cast<double>(draft_tokens) / draft_seconds;
}

void Session::Impl::observe_plain(double seconds) {
  ++speculation_stats.plain_steps;
  speculation_stats.plain_seconds += seconds;
  draft_depth.observe_plain(seconds);
}

Result<std::vector<Token>> Session::Impl::speculate(Token first, size_t depth, const SamplingParams& params,
                                                    Rng& rng, std::span<const Token> stops) {
  const backend::Backend& device = *engine->backend;
  const auto begin = Clock::now();
  backend::DraftRequest request;
  request.next = first;
  request.depth = depth;
  request.min_margin = speculation_options.min_margin;
  const auto drafts = device.draft(*sequence, request);
  if (!drafts) {
    if (drafts.error().code != ErrorCode::not_finite) return drafts.error();
    draft_depth = DraftDepth({});  // the model itself may be sound: go on without
    speculation_stats.failure = drafts.error().message;
  }
  std::vector<Token> rows{first};
  for (const backend::Draft& draft :
       drafts ? *drafts : std::vector<backend::Draft>()) {  // what follows a stop is never generated
    if (std::find(stops.begin(), stops.end(), draft.token) != stops.end()) break;
    rows.push_back(draft.token);
  }
  const auto drafted_at = Clock::now();
  const size_t drafted = rows.size() - 1, before = tokens.size();
  if (auto done = device.verify(*sequence, rows); !done) {
    if (sequence->position() != before) reset();
    return std::move(done).error();
  }
  fetched_logits.clear();

  // A draft is kept if it is what would have been chosen. The random number of the first that is not stays
  // unused: the next step draws it again from the same logits.
  size_t accepted = 0;
  while (accepted < drafted) {
    const size_t behind = drafted - accepted;
    if (!backend::check_choice(*sequence, behind)) break;
    Rng trial = rng;
    const float uniform = sampling::is_greedy(params) ? 0.0f : trial.uniform();
    auto chosen = device.sample(*sequence, params, uniform, behind);
    if (!chosen) {
      reset();  // the sequence holds tokens that nobody has chosen
      return std::move(chosen).error();
    }
    if (*chosen != rows[accepted + 1]) break;
    rng = trial;
    ++accepted;
  }
  rows.resize(1 + accepted);
  if (auto done = device.retract(*sequence, drafted - accepted); !done) {
    reset();
    return std::move(done).error();
  }
  tokens.insert(tokens.end(), rows.begin(), rows.end());
  const auto end = Clock::now();
  if (drafted > 0) {
    draft_depth.observe(drafted, accepted, seconds_between(begin, drafted_at),
                        seconds_between(drafted_at, end));
    ++speculation_stats.draft_steps;
    speculation_stats.draft_tokens += rows.size();
    speculation_stats.draft_seconds += seconds_between(begin, end);
    for (size_t i = 0; i < drafted; ++i) ++speculation_stats.drafted[i];
    for (size_t i = 0; i < accepted; ++i) ++speculation_stats.accepted[i];
  }
  DS4_TRY(check_finite());
  if (before / anchor_interval_tokens != tokens.size() / anchor_interval_tokens) DS4_TRY(add_anchor());
  return rows;
}

}  // namespace ds4
