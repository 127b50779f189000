#include "runner.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "base/error.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "grade.hpp"
#include "prompt.hpp"

namespace ds4::eval {
namespace {

/// The place of `token` among the `limit` likeliest ones, from 1, ties by lower id; 0 if it is behind them.
uint64_t rank_of(std::span<const float> logits, Token token, uint64_t limit) {
  const auto index = static_cast<size_t>(token);
  uint64_t rank = 1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > logits[index] || (logits[i] == logits[index] && i < index)) ++rank;
    if (rank > limit) return 0;
  }
  return rank;
}

bool was_graded(Status status) {
  return status == Status::passed || status == Status::failed || status == Status::incomplete;
}

}  // namespace

uint64_t token_limit(const Options& options, const Item& item) {
  return options.max_tokens_given || item.max_tokens == 0 ? options.max_tokens : item.max_tokens;
}

Result<ContextNeed> context_need(const Options& options, const std::vector<Item>& items,
                                 const Tokenizer& tokenizer) {
  ContextNeed need;
  for (size_t i = 0; i < items.size(); ++i) {
    const uint64_t prompt = prompt_tokens(items[i], options.think, tokenizer).size();
    uint64_t budget = token_limit(options, items[i]);
    if (options.retry_incomplete) budget = std::min(most_tokens, 2 * budget);
    uint64_t tokens = prompt + budget;
    if (think_mode(items[i], options.think) == ThinkMode::max)
      tokens = std::max(tokens, think_max_context_tokens);
    need.tokens = std::max(need.tokens, tokens);
    if (prompt <= need.largest_prompt) continue;
    need.largest_prompt = prompt;
    need.case_number = i + 1;
    need.budget = budget;
  }
  if (need.tokens > most_tokens) {
    return fail(
        ErrorCode::invalid_argument,
        "the questions need a context of {} tokens (the largest prompt has {}); at most {} are possible",
        need.tokens, need.largest_prompt, most_tokens);
  }
  return need;
}

Runner::Runner(const Options& options, const Engine& engine, Session& session, RunState& state,
               Display& display, TraceFile* trace)
    : options_(options),
      engine_(engine),
      session_(session),
      state_(state),
      display_(display),
      trace_(trace),
      rng_(options.seed) {}

std::optional<size_t> Runner::next_pending(size_t after) const {
  const size_t count = state_.cases.size();
  for (size_t step = 1; step <= count; ++step) {
    const size_t index = (after + step) % count;
    if (state_.cases[index].status == Status::pending) return index;
  }
  return {};
}

Result<void> Runner::run() {
  std::optional<size_t> next = state_.cases.empty() ? std::nullopt : std::optional<size_t>(0);
  while (next) {
    const size_t index = *next;
    const uint64_t limit = token_limit(options_, state_.cases[index].item);
    DS4_ASSIGN(End end, run_case(index, limit));
    if (end == End::done && options_.retry_incomplete && state_.cases[index].status == Status::incomplete) {
      DS4_ASSIGN(end, run_case(index, std::min(most_tokens, 2 * limit)));
    }
    if (end != End::switched) display_.end_case(state_);
    if (end == End::done) request_ = display_.poll(state_);
    if (end == End::stopped || request_.kind == Request::Kind::stop || cli::interrupted()) return {};
    next = request_.kind == Request::Kind::run ? std::optional(request_.index) : next_pending(index);
    request_ = {};
  }
  return {};
}

bool Runner::interrupted_by_user() {
  if (cli::interrupted()) request_.kind = Request::Kind::stop;
  if (request_.kind == Request::Kind::none) request_ = display_.poll(state_);
  return request_.kind != Request::Kind::none;
}

Result<Runner::End> Runner::run_case(size_t index, uint64_t limit) {
  CaseState& c = state_.cases[index];
  c = {.item = std::move(c.item)};
  state_.active = index;
  const std::vector<Token> prompt = prompt_tokens(c.item, options_.think, engine_.tokenizer());
  c.prompt_tokens = prompt.size();
  c.limit_tokens = prompt.size() < state_.context_tokens
                       ? std::min<uint64_t>(limit, state_.context_tokens - prompt.size())
                       : 0;
  if (c.limit_tokens == 0) {
    c.status = Status::skipped;
    display_.begin_case(state_);
    DS4_TRY(record(c, status_name(c.status)));
    return End::done;
  }
  c.status = Status::prefill;
  state_.prefill_done = 0;
  state_.prefill_total = prompt.size();
  state_.clock.start();
  const double begin = state_.clock.seconds();
  display_.begin_case(state_);
  const auto answered = answer(c, prompt);
  // In milliseconds, as traces have it, so that a report made from a trace is the same.
  c.seconds = std::round((state_.clock.seconds() - begin) * 1000) / 1000;
  state_.clock.stop();
  if (!answered) {
    c.status = Status::error;
    c.error = answered.error().message;
  } else if (*answered) {
    Grade grade = grade_reply(c.item, c.output);
    c.picked = std::move(grade.picked);
    c.status = grade.verdict == Verdict::passed       ? Status::passed
               : grade.verdict == Verdict::incomplete ? Status::incomplete
                                                      : Status::failed;
  } else if (request_.kind == Request::Kind::run) {
    DS4_TRY(record(c, "SWITCHED"));
    c = {.item = std::move(c.item)};
    return End::switched;
  } else {
    c.status = Status::stopped;
  }
  DS4_TRY(record(c, status_name(c.status)));
  return c.status == Status::stopped ? End::stopped : End::done;
}

Result<bool> Runner::answer(CaseState& c, const std::vector<Token>& prompt) {
  // From nothing, so that a result does not depend on what was asked before.
  session_.reset();
  SyncOptions sync;
  sync.on_progress = [&](size_t done, size_t total) {
    state_.prefill_done = done;
    state_.prefill_total = total;
    display_.prefill_progress(state_);
  };
  sync.cancelled = [&] { return interrupted_by_user(); };
  if (auto synced = session_.sync(prompt, sync); !synced) {
    if (synced.error().code == ErrorCode::cancelled) return false;
    return std::move(synced).error();
  }
  const SpecialTokens& special = engine_.tokenizer().special();
  ThinkWatch watch(options_.budget, special.think_close,
                   think_mode(c.item, options_.think) != ThinkMode::none);
  c.status = Status::running;
  state_.thinking = watch.thinking();
  state_.decode_begin_seconds = state_.clock.seconds();
  auto generated = generate(c, watch);
  c.close = watch.close();
  c.decode_seconds = state_.clock.seconds() - state_.decode_begin_seconds;
  return generated;
}

Result<bool> Runner::generate(CaseState& c, ThinkWatch& watch) {
  const SpecialTokens& special = engine_.tokenizer().special();
  const std::array stops{special.eos, special.user, special.bos};
  while (c.generated_tokens < c.limit_tokens) {
    if (interrupted_by_user()) return false;
    const uint64_t remaining = c.limit_tokens - c.generated_tokens;
    DS4_ASSIGN(const std::optional<Token> forced,
               watch.forced(remaining, [&](uint64_t limit) -> Result<uint64_t> {
                 DS4_ASSIGN(const auto logits, session_.logits());
                 return rank_of(logits, special.think_close, limit);
               }));
    if (forced) {
      add_token(c, watch, *forced);
      if (c.generated_tokens < c.limit_tokens) DS4_TRY(session_.eval(*forced));
      continue;
    }
    DS4_ASSIGN(const auto tokens,
               session_.generate(options_.sampling, rng_, watch.free_tokens(remaining), stops));
    for (const Token token : tokens) {
      if (cli::ends_reply(special, token)) return true;
      add_token(c, watch, token);
    }
  }
  return true;
}

void Runner::add_token(CaseState& c, ThinkWatch& watch, Token token) {
  const std::string bytes = engine_.tokenizer().decode(token);
  const uint64_t remaining = c.limit_tokens - c.generated_tokens;
  const bool reasoning = watch.thinking();
  ++c.generated_tokens;
  c.output += bytes;
  watch.generated(c.generated_tokens, remaining, bytes);
  state_.thinking = watch.thinking();
  display_.token(state_, bytes, reasoning);
}

Result<void> Runner::record(const CaseState& c, std::string_view status) {
  if (trace_ == nullptr) return {};
  TraceCase t{.number = state_.active + 1, .total = state_.cases.size()};
  t.timestamp_unix = static_cast<uint64_t>(std::time(nullptr));
  t.source = c.item.source;
  t.id = c.item.id;
  t.domain = c.item.domain;
  t.title = c.item.title;
  t.status = status;
  t.picked = was_graded(c.status) ? c.picked : "";
  t.expected = c.item.answer;
  t.prompt_tokens = c.prompt_tokens;
  t.generated_tokens = c.generated_tokens;
  t.elapsed_seconds = c.seconds;
  t.temperature = options_.sampling.temperature;
  t.top_p = options_.sampling.top_p;
  t.min_p = options_.sampling.min_p;
  t.think_mode = think_name(think_mode(c.item, options_.think));
  t.close = c.close;
  t.error = c.error;
  t.choices = c.item.choices;
  t.answer_kind = kind_name(c.item.kind);
  t.system_prompt = system_text(c.item);
  t.question_prompt = question_text(c.item);
  t.model_output = c.output;
  return trace_->write(format_trace_case(t));
}

}  // namespace ds4::eval
