#include "measure.hpp"

#include <chrono>
#include <cmath>

#include "base/error.hpp"
#include "builtin_text.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "ds4/chat.hpp"

namespace ds4::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double rate(uint64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

std::vector<Token> chat_tokens(const Options& options, const std::string& text, const Tokenizer& tokenizer) {
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({.role = Role::system, .content = options.system});
  messages.push_back({.role = Role::user, .content = text});
  return render_chat(messages, {.think = ThinkMode::none}).encode(tokenizer);
}

/// As much of the built-in text as gives `count` tokens.
std::vector<Token> builtin_tokens(uint64_t count, const Tokenizer& tokenizer) {
  for (size_t bytes = 4 * count + 4096;; bytes *= 2) {
    std::vector<Token> tokens = tokenizer.encode_plain(builtin_text(bytes));
    if (tokens.size() >= count) return tokens;
  }
}

/// The most likely token that does not end the text. The logits are fetched only where another was.
Result<Token> most_likely(const Session& session, Token end_of_text) {
  DS4_ASSIGN(const Token best, session.argmax());
  if (best != end_of_text) return best;
  DS4_ASSIGN(const auto logits, session.logits());
  const Token other = argmax_except(logits, end_of_text);
  if (other < 0) return fail(ErrorCode::not_finite, "no token but the end of the text has a finite logit");
  return other;
}

/// Decodes gen_tokens tokens; returns the seconds they took.
Result<double> run_probe(const Options& options, Session& session, std::span<const Token> following,
                         Token end_of_text) {
  const auto begin = Clock::now();
  for (uint64_t i = 0; i < options.gen_tokens; ++i) {
    if (cli::interrupted()) return fail(ErrorCode::cancelled, "interrupted");
    if (session.position() + 1 >= session.context()) {
      return fail(ErrorCode::context_full, "the context of {} tokens is full after {} decoded tokens",
                  session.context(), i);
    }
    Token token = 0;
    if (options.teacher_forced) {
      token = following[i];
    } else {
      DS4_ASSIGN(token, most_likely(session, end_of_text));
    }
    DS4_TRY(session.eval(token));
  }
  return seconds_since(begin);
}

double mean_decode_bytes(const Engine& engine, uint64_t position, uint64_t tokens) {
  if (tokens == 0) return 0;
  double sum = 0;
  for (uint64_t i = 0; i < tokens; ++i) {
    const DecodeBytes bytes = engine.decode_bytes(position + i);
    sum += static_cast<double>(bytes.weights + bytes.state);
  }
  return sum / static_cast<double>(tokens);
}

}  // namespace

double FrontierRow::prefill_tps() const {
  return rate(prefill_tokens, prefill_seconds);
}
double FrontierRow::gen_tps() const {
  return rate(gen_tokens, gen_seconds);
}

Result<std::vector<Token>> prompt_tokens(const Options& options, const Tokenizer& tokenizer) {
  const uint64_t needed = options.steps.last + (options.teacher_forced ? options.gen_tokens : 0);
  const PromptKind kind = options.prompt_kind();
  if (kind == PromptKind::builtin) return builtin_tokens(needed, tokenizer);
  const bool chat = kind == PromptKind::chat_file;
  const std::string& path = chat ? options.chat_prompt_path : options.raw_prompt_path;
  DS4_ASSIGN(const std::string text, cli::read_file(path));
  std::vector<Token> tokens = chat ? chat_tokens(options, text, tokenizer) : tokenizer.encode_plain(text);
  if (tokens.size() < needed) {
    return fail(ErrorCode::invalid_argument, "{} gives {} tokens, but {} are needed to measure up to {}",
                path, tokens.size(), needed, options.steps.last);
  }
  return tokens;
}

Token argmax_except(std::span<const float> logits, Token excluded) {
  Token best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<Token>(i);
    if (token == excluded || !std::isfinite(logits[i])) continue;
    if (best < 0 || logits[i] > logits[static_cast<size_t>(best)]) best = token;
  }
  return best;
}

Result<void> measure_frontiers(const Options& options, const Engine& engine, Session& session,
                               std::span<const Token> prompt, const FrontierCalls& calls) {
  for (uint64_t frontier = options.steps.first;; frontier = next_frontier(options.steps, frontier)) {
    FrontierRow row;
    row.ctx_tokens = frontier;
    const auto begin = Clock::now();
    DS4_ASSIGN(const SyncStats stats, cli::sync_with_progress(session, prompt.first(frontier)));
    row.prefill_seconds = seconds_since(begin);
    row.prefill_tokens = stats.evaluated;
    DS4_TRY(calls.on_prefilled(row));
    if (options.gen_tokens > 0) {
      DS4_ASSIGN(const Snapshot snapshot, session.snapshot());
      row.kvcache_bytes = snapshot.size_bytes();
      row.gen_tokens = options.gen_tokens;
      row.bytes_per_gen_token = mean_decode_bytes(engine, frontier, options.gen_tokens);
      DS4_ASSIGN(row.gen_seconds,
                 run_probe(options, session, prompt.subspan(frontier), engine.tokenizer().special().eos));
      DS4_TRY(session.restore(snapshot));
    }
    DS4_TRY(calls.on_row(row));
    if (frontier >= options.steps.last) return {};
  }
}

}  // namespace ds4::bench
