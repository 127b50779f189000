#include "ds4/session.hpp"

#include <algorithm>
#include <chrono>

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

Result<void> Session::Impl::fall_back(size_t position) {
  const Anchor* anchor = anchors.find(position);
  if (anchor == nullptr) {
    reset();
    return {};
  }
  DS4_TRY(engine->backend->restore(*sequence, *anchor->image));
  fetched_logits.clear();
  tokens.resize(anchor->position);
  anchors.truncate(anchor->position);
  return {};
}

Result<void> Session::Impl::add_anchor() {
  DS4_ASSIGN(auto image, engine->backend->snapshot(*sequence));
  anchors.add({tokens.size(), std::move(image)});
  return {};
}

Result<void> Session::Impl::extend_chunk(std::span<const Token> chunk, size_t total, size_t logit_rows,
                                         std::span<float> logits, const SyncOptions& options) {
  const size_t begin = tokens.size();
  backend::EvalControl control;
  control.cancelled = options.cancelled;
  if (options.on_progress) {
    control.on_progress = [&](double fraction) {
      options.on_progress(begin + static_cast<size_t>(fraction * static_cast<double>(chunk.size())), total);
    };
  }
  if (auto done = engine->backend->prefill(*sequence, chunk, logit_rows, logits, control); !done) {
    if (sequence->position() != begin) reset();
    return done;
  }
  fetched_logits.clear();
  tokens.insert(tokens.end(), chunk.begin(), chunk.end());
  return {};
}

Result<void> Session::Impl::extend(std::span<const Token> prompt, const SyncOptions& options) {
  const size_t chunk = engine->prefill_chunk;
  if (options.on_progress) options.on_progress(tokens.size(), prompt.size());
  while (tokens.size() < prompt.size()) {
    const size_t begin = tokens.size();
    const size_t end = std::min(prompt.size(), (begin / chunk + 1) * chunk);
    DS4_TRY(extend_chunk(prompt.subspan(begin, end - begin), prompt.size(), 0, {}, options));
    DS4_TRY(check_finite());
    DS4_TRY(add_anchor());
  }
  return {};
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<SyncStats> Session::sync(std::span<const Token> prompt, const SyncOptions& options) {
  DS4_TRY(impl_->check_prompt(prompt));
  const size_t common = common_prefix(prompt);
  // Whatever computed NaN is not built upon: it is computed again from the last good state.
  if (common < position() || !impl_->check_finite()) DS4_TRY(impl_->fall_back(common));
  SyncStats stats;
  stats.reused = position();
  stats.evaluated = prompt.size() - stats.reused;
  DS4_TRY(impl_->extend(prompt, options));
  return stats;
}

Result<void> Session::eval(Token token) {
  if (position() >= impl_->context) {
    return fail(ErrorCode::context_full, "the context of {} tokens is full", impl_->context);
  }
  const backend::DecodeRow row{impl_->sequence.get(), token};
  if (auto done = impl_->engine->backend->decode({&row, 1}, {}); !done) {
    if (impl_->sequence->position() != position()) impl_->reset();
    return done;
  }
  impl_->fetched_logits.clear();
  impl_->tokens.push_back(token);
  DS4_TRY(impl_->check_finite());
  if (position() % anchor_interval_tokens == 0) DS4_TRY(impl_->add_anchor());
  return {};
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
  if (depth > 0) return impl_->speculate(first, depth, params, rng, stops);
  DS4_TRY(eval(first));
  impl_->observe_plain(seconds_since(begin));
  return std::vector<Token>{first};
}

void Session::set_speculation(const SpeculationOptions& options) {
  impl_->speculation_options = options;
  impl_->draft_depth = DraftDepth(options);
}

void Session::set_steering(const SteeringScales& scales) {
  impl_->sequence->steering = scales;
}

Result<std::vector<float>> Session::capture(std::span<const Token> prompt, Component component, size_t rows) {
  DS4_TRY(impl_->check_prompt(prompt));
  if (prompt.size() > impl_->engine->prefill_chunk) {
    return fail(ErrorCode::invalid_argument, "a prompt of {} tokens is longer than a prefill chunk of {}",
                prompt.size(), impl_->engine->prefill_chunk);
  }
  reset();
  backend::Capture capture{component, rows, {}};
  backend::EvalControl control;
  control.capture = &capture;
  DS4_TRY(impl_->engine->backend->prefill(*impl_->sequence, prompt, 0, {}, control));
  impl_->tokens.assign(prompt.begin(), prompt.end());
  DS4_TRY(impl_->check_finite());
  DS4_TRY(impl_->add_anchor());
  return std::move(capture.values);
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

Result<std::span<const float>> Session::logits() const {
  std::vector<float>& fetched = impl_->fetched_logits;
  if (fetched.empty() && !impl_->tokens.empty()) {
    fetched.resize(impl_->engine->info.vocabulary);
    if (auto done = impl_->engine->backend->logits(*impl_->sequence, fetched); !done) {
      fetched.clear();
      return std::move(done).error();
    }
  }
  return std::span<const float>(fetched);
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

size_t Session::common_prefix(std::span<const Token> prompt) const {
  const auto [mine, theirs] =
      std::mismatch(impl_->tokens.begin(), impl_->tokens.end(), prompt.begin(), prompt.end());
  return static_cast<size_t>(mine - impl_->tokens.begin());
}

Result<void> Session::rewind(size_t target) {
  if (target > position()) {
    return fail(ErrorCode::invalid_argument, "cannot rewind to position {}: the session has {} tokens",
                target, position());
  }
  if (target == position()) return impl_->check_finite();
  const Anchor* anchor = impl_->anchors.find(target);
  const size_t from = anchor == nullptr ? 0 : anchor->position;
  if (target - from > impl_->engine->prefill_chunk) {
    return fail(
        ErrorCode::no_state,
        "cannot rewind to position {}: no state is kept between {} and there, and recomputing {} tokens is "
        "more than one prefill chunk; position {} can be reached",
        target, from, target - from, from);
  }
  const std::vector<Token> kept(impl_->tokens.begin(),
                                impl_->tokens.begin() + static_cast<ptrdiff_t>(target));
  DS4_TRY(impl_->fall_back(target));
  return impl_->extend(kept, {});
}

void Session::reset() {
  impl_->reset();
}

Result<Snapshot> Session::snapshot() const {
  DS4_ASSIGN(auto image, impl_->engine->backend->snapshot(*impl_->sequence));
  Snapshot result;
  result.impl_ =
      std::make_shared<const SnapshotImpl>(SnapshotImpl{impl_->engine, std::move(image), impl_->tokens});
  return result;
}

Result<void> Session::restore(const Snapshot& snapshot) {
  const SnapshotImpl* source = snapshot.impl_.get();
  if (source == nullptr || source->engine.lock() != impl_->engine) {
    return fail(ErrorCode::invalid_argument, "the snapshot was not made by a session of this engine");
  }
  if (source->tokens.size() > impl_->context) {
    return fail(ErrorCode::context_full, "the snapshot has {} tokens, the context of this session is {}",
                source->tokens.size(), impl_->context);
  }
  DS4_TRY(impl_->engine->backend->restore(*impl_->sequence, *source->image));
  impl_->tokens = source->tokens;
  impl_->fetched_logits.clear();
  impl_->anchors.clear();
  if (impl_->tokens.empty() || !impl_->check_finite()) return {};
  impl_->anchors.add({impl_->tokens.size(), source->image});
  return {};
}

size_t Snapshot::size_bytes() const {
  return impl_ == nullptr ? 0 : impl_->image->size_bytes();
}
size_t Snapshot::tokens() const {
  return impl_ == nullptr ? 0 : impl_->tokens.size();
}

}  // namespace ds4
