#include "ds4/session.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>

#include "backend/checks.hpp"
#include "base/error.hpp"
#include "engine/session_impl.hpp"
#include "sampling/draw.hpp"

namespace ds4 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Result<void> Session::Impl::check_prompt(std::span<const Token> prompt) const {
  if (prompt.empty()) return fail(ErrorCode::invalid_argument, "the prompt has no tokens");
  if (prompt.size() >= context) {
    return fail(ErrorCode::context_full, "the prompt has {} tokens, the context of {} leaves room for {}",
                prompt.size(), context, context - 1);
  }
  const auto bad = std::find_if(prompt.begin(), prompt.end(), [&](Token token) {
    return token < 0 || static_cast<uint32_t>(token) >= engine->info.vocabulary;
  });
  if (bad != prompt.end()) {
    return fail(ErrorCode::invalid_argument, "token {} at position {} is outside the vocabulary of {}", *bad,
                bad - prompt.begin(), engine->info.vocabulary);
  }
  return {};
}

Result<void> Session::Impl::check_finite() const {
  return tokens.empty() ? Result<void>() : backend::check_choice(*sequence);
}

void Session::Impl::reset() {
  sequence->clear();
  tokens.clear();
  fetched_logits.clear();
  anchors.clear();
}

void Session::Impl::settle() {
  fetched_logits.clear();
  if (sequence->position() != tokens.size()) reset();
}

Result<void> Session::Impl::extend_chunk(std::span<const Token> chunk, size_t total, size_t logit_rows,
                                         std::span<float> logits, const SyncOptions& options) {
  const size_t begin = tokens.size();
  backend::EvalControl control;
  control.cancelled = options.cancelled;
  if (options.expert_inputs != nullptr) {
    DS4_ASSIGN(control.expert_inputs, expert_inputs(*options.expert_inputs));
  }
  if (options.on_progress) {
    control.on_progress = [&](double fraction) {
      options.on_progress(begin + static_cast<size_t>(fraction * static_cast<double>(chunk.size())), total);
    };
  }
  if (auto done = engine->backend->prefill(*sequence, chunk, logit_rows, logits, control); !done) {
    settle();
    return done;
  }
  fetched_logits.clear();
  tokens.insert(tokens.end(), chunk.begin(), chunk.end());
  return {};
}

Result<void> Session::Impl::extend(std::span<const Token> prompt, const SyncOptions& options) {
  const size_t chunk = engine->prefill_chunk;
  const auto wants_anchor = [&](size_t position) {
    return std::find(options.keep_anchors.begin(), options.keep_anchors.end(), position) !=
           options.keep_anchors.end();
  };
  if (options.on_progress) options.on_progress(tokens.size(), prompt.size());
  while (tokens.size() < prompt.size()) {
    const size_t begin = tokens.size();
    size_t end = std::min(prompt.size(), (begin / chunk + 1) * chunk);
    for (const size_t kept : options.keep_anchors) {
      if (kept > begin) end = std::min(end, kept);
    }
    DS4_TRY(extend_chunk(prompt.subspan(begin, end - begin), prompt.size(), 0, {}, options));
    DS4_TRY(check_finite());
    DS4_TRY(add_anchor());
    if (wants_anchor(end)) anchors.pin(end);
  }
  return {};
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<SyncStats> Session::Impl::sync(std::span<const Token> prompt, const SyncOptions& options) {
  DS4_TRY(check_prompt(prompt));
  const size_t common = common_prefix(prompt);
  // Whatever computed NaN is not built upon: it is computed again from the last good state.
  if (common < tokens.size() || !check_finite()) DS4_TRY(fall_back(common));
  for (const size_t kept : options.keep_anchors) {
    if (kept <= tokens.size()) anchors.pin(kept);
  }
  SyncStats stats;
  stats.reused = tokens.size();
  stats.evaluated = prompt.size() - stats.reused;
  DS4_TRY(extend(prompt, options));
  return stats;
}

Result<SyncStats> Session::sync(std::span<const Token> prompt, const SyncOptions& options) {
  return impl_->guarded("a prompt", [&] { return impl_->sync(prompt, options); });
}

Result<std::vector<Token>> Session::generate(const SamplingParams& params, Rng& rng, size_t max_tokens,
                                             std::span<const Token> stops) {
  if (max_tokens == 0) return fail(ErrorCode::invalid_argument, "no tokens to generate");
  const auto begin = Clock::now();
  DS4_ASSIGN(const Token first, sample(params, rng));
  if (std::find(stops.begin(), stops.end(), first) != stops.end()) return std::vector<Token>{first};
  const uint64_t room = context() - std::min<uint64_t>(context(), position());
  const size_t most = static_cast<size_t>(std::min<uint64_t>(max_tokens, room));
  const size_t wanted = impl_->engine->info.drafter ? impl_->draft_depth.choose() : 0;
  const size_t depth = std::min({wanted, most > 0 ? most - 1 : 0, backend::max_decode_rows - 1});
  return impl_->guarded("a step", [&]() -> Result<std::vector<Token>> {
    if (depth > 0) return impl_->speculate(first, depth, params, rng, stops);
    std::vector<Token> chosen{first};
    DS4_TRY(eval(first));
    impl_->observe_plain(seconds_since(begin));
    return chosen;
  });
}

void Session::set_speculation(const SpeculationOptions& options) {
  impl_->speculation_options = options;
  impl_->draft_depth = DraftDepth(options);
}

void Session::set_steering(const SteeringScales& scales) {
  impl_->sequence->steering = scales;
}

Result<std::vector<float>> Session::Impl::capture(std::span<const Token> prompt, Component component,
                                                  size_t rows) {
  DS4_TRY(check_prompt(prompt));
  if (prompt.size() > engine->prefill_chunk) {
    return fail(ErrorCode::invalid_argument, "a prompt of {} tokens is longer than a prefill chunk of {}",
                prompt.size(), engine->prefill_chunk);
  }
  reset();
  backend::Capture capture{component, rows, {}};
  backend::EvalControl control;
  control.capture = &capture;
  DS4_TRY(engine->backend->prefill(*sequence, prompt, 0, {}, control));
  tokens.assign(prompt.begin(), prompt.end());
  DS4_TRY(check_finite());
  DS4_TRY(add_anchor());
  return std::move(capture.values);
}

Result<std::vector<float>> Session::capture(std::span<const Token> prompt, Component component, size_t rows) {
  return impl_->guarded("what is captured", [&] { return impl_->capture(prompt, component, rows); });
}

const SpeculationStats& Session::speculation() const {
  return impl_->speculation_stats;
}

Result<Token> Session::argmax() const {
  DS4_TRY(backend::check_choice(*impl_->sequence));
  return impl_->sequence->logit_summary()->best;
}

Result<Token> Session::sample(const SamplingParams& params, Rng& rng) const {
  DS4_TRY(backend::check_choice(*impl_->sequence));
  const float uniform = sampling::is_greedy(params) ? 0.0f : rng.uniform();
  return impl_->engine->backend->sample(*impl_->sequence, params, uniform, 0);
}

Result<Token> Session::Impl::sample(std::span<const float> logits, const SamplingParams& params, Rng& rng,
                                    std::span<const uint64_t> allowed) {
  constexpr size_t bits = 64;
  if (allowed.size() != (logits.size() + bits - 1) / bits) {
    return fail(ErrorCode::invalid_argument, "{} words of allowed tokens do not fit a vocabulary of {}",
                allowed.size(), logits.size());
  }
  masked_logits.assign(logits.size(), -std::numeric_limits<float>::infinity());
  bool any = false;
  for (size_t word = 0; word < allowed.size(); ++word) {
    for (uint64_t rest = allowed[word]; rest != 0; rest &= rest - 1) {
      const size_t token = word * bits + static_cast<size_t>(std::countr_zero(rest));
      if (token >= logits.size()) break;
      masked_logits[token] = logits[token];
      any = true;
    }
  }
  if (!any) return fail(ErrorCode::invalid_argument, "no token is allowed at position {}", tokens.size());
  const Token best = sampling::summarize(masked_logits).best;
  if (best < 0) {
    return fail(ErrorCode::not_finite, "position {}: no allowed token has a finite logit", tokens.size());
  }
  return sampling::is_greedy(params) ? best : sampling::draw(masked_logits, params, rng.uniform());
}

Result<Token> Session::sample(const SamplingParams& params, Rng& rng,
                              std::span<const uint64_t> allowed) const {
  DS4_TRY(backend::check_choice(*impl_->sequence));
  DS4_ASSIGN(const auto values, logits());
  return impl_->guarded("a choice", [&] { return impl_->sample(values, params, rng, allowed); });
}

Result<std::span<const float>> Session::logits() const {
  return impl_->guarded("logits", [this]() -> Result<std::span<const float>> {
    std::vector<float>& fetched = impl_->fetched_logits;
    if (fetched.empty() && !impl_->tokens.empty()) {
      fetched.resize(impl_->engine->info.vocabulary);
      if (auto done = impl_->engine->backend->logits(*impl_->sequence, fetched); !done) {
        fetched.clear();
        return std::move(done).error();
      }
    }
    return std::span<const float>(fetched);
  });
}
std::span<const Token> Session::tokens() const {
  return impl_->tokens;
}
uint64_t Session::context() const {
  return impl_->context;
}
size_t Session::state_bytes() const {
  return impl_->sequence->state_bytes();
}

size_t Session::anchor_bytes() const {
  return impl_->anchors.own_bytes();
}

size_t Session::Impl::common_prefix(std::span<const Token> prompt) const {
  const auto [mine, theirs] = std::mismatch(tokens.begin(), tokens.end(), prompt.begin(), prompt.end());
  return static_cast<size_t>(mine - tokens.begin());
}
size_t Session::common_prefix(std::span<const Token> prompt) const {
  return impl_->common_prefix(prompt);
}

void Session::reset() {
  impl_->reset();
}

Result<Snapshot> Session::snapshot() const {
  return impl_->guarded("a snapshot", [this]() -> Result<Snapshot> {
    DS4_ASSIGN(auto image, impl_->engine->backend->snapshot(*impl_->sequence));
    Snapshot result;
    result.impl_ =
        std::make_shared<const SnapshotImpl>(SnapshotImpl{impl_->engine, std::move(image), impl_->tokens});
    return result;
  });
}

Result<void> Session::Impl::restore(const SnapshotImpl& source) {
  if (source.tokens.size() > context) {
    return fail(ErrorCode::context_full, "the snapshot has {} tokens, the context of this session is {}",
                source.tokens.size(), context);
  }
  std::vector<Token> restored = source.tokens;
  if (auto done = engine->backend->restore(*sequence, *source.image); !done) {
    settle();
    return done;
  }
  tokens = std::move(restored);
  fetched_logits.clear();
  anchors.clear();
  if (!tokens.empty() && check_finite()) anchors.add({tokens.size(), source.image});
  return {};
}

Result<void> Session::restore(const Snapshot& snapshot) {
  const SnapshotImpl* source = snapshot.impl_.get();
  if (source == nullptr || source->engine.lock() != impl_->engine) {
    return fail(ErrorCode::invalid_argument, "the snapshot was not made by a session of this engine");
  }
  return impl_->guarded("a restored state", [&] { return impl_->restore(*source); });
}

size_t Snapshot::size_bytes() const {
  return impl_ == nullptr ? 0 : impl_->image->size_bytes();
}
size_t Snapshot::tokens() const {
  return impl_ == nullptr ? 0 : impl_->tokens.size();
}

}  // namespace ds4
