#include "diagnostics.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.hpp"
#include "common/atomic_file.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/json_dump.hpp"
#include "common/model_run.hpp"
#include "generate.hpp"

namespace ds4::cli {
namespace {

constexpr size_t perplexity_given_tokens = 32;
constexpr size_t perplexity_report_tokens = 256;

Error cancelled() {
  return fail(ErrorCode::cancelled, "interrupted");
}

std::string token_json(const Tokenizer& tokenizer, Token token) {
  return json_token(token, tokenizer.decode(token));
}

std::string logprobs_step_json(const Tokenizer& tokenizer, size_t step, Token selected,
                               const std::vector<TokenLogprob>& top) {
  std::string text = fmt::format("    {{\"step\":{},\"selected\":{},\"top_logprobs\":[", step,
                                 token_json(tokenizer, selected));
  for (size_t i = 0; i < top.size(); ++i) {
    text += fmt::format("{}{{\"token\":{},\"logit\":{},\"logprob\":{}}}", i > 0 ? "," : "",
                        token_json(tokenizer, top[i].token), json_number(top[i].logit),
                        json_number(top[i].logprob));
  }
  return text + "]}";
}

Result<std::vector<TokenScore>> score_with_progress(Session& session, std::span<const Token> tokens) {
  const size_t begin = session.position();
  size_t reported = 0;
  SyncOptions options;
  options.cancelled = [] { return interrupted(); };
  options.on_progress = [&](size_t done, size_t) {
    const size_t scored = (done - begin) / perplexity_report_tokens * perplexity_report_tokens;
    if (scored > reported) say(fmt::format("scored {} of {} tokens", scored, tokens.size()));
    reported = std::max(reported, scored);
  };
  return session.score(tokens, options);
}

}  // namespace

Result<void> dump_logits(const Options& options, const std::string& model_path, const Engine& engine,
                         Session& session, std::span<const Token> prompt) {
  DS4_ASSIGN(auto file, AtomicFile::create(options.dump_logits_path));
  DS4_ASSIGN(const unsigned bits, expert_bits(model_path));
  DS4_TRY(sync_with_progress(session, prompt));
  DS4_ASSIGN(const auto logits, session.logits());
  const Token best = argmax(logits);
  std::string text = fmt::format(
      "{{\n  \"source\":\"ds4\",\n  \"model\":{},\n  \"backend\":{},\n  \"quant_bits\":{},\n  "
      "\"prompt_tokens\":{},\n"
      "  \"ctx\":{},\n  \"vocab\":{},\n  \"argmax_token\":{},\n  \"argmax_logit\":{},\n  \"logits\":[",
      json_string(model_path), json_string(device_name(engine)), bits, prompt.size(), session.context(),
      logits.size(), token_json(engine.tokenizer(), best),
      logits.empty() ? "null" : json_number(logits[static_cast<size_t>(best)]));
  for (size_t i = 0; i < logits.size(); ++i) {
    text += i == 0 ? "\n    " : i % 8 == 0 ? ",\n    " : ",";
    text += json_number(logits[i]);
  }
  text += "\n  ]\n}\n";
  DS4_TRY(file.write(text));
  return file.commit();
}

Result<void> dump_logprobs(const Options& options, const Engine& engine, Session& session,
                           std::span<const Token> prompt) {
  DS4_ASSIGN(auto file, AtomicFile::create(options.dump_logprobs_path));
  DS4_TRY(sync_with_progress(session, prompt));
  const size_t steps = generation_room(session.context(), session.position(), options.max_tokens);
  DS4_TRY(file.write(fmt::format(
      "{{\n  \"source\":\"ds4\",\n  \"prompt_tokens\":{},\n  \"ctx\":{},\n  \"top_k\":{},\n  \"steps\":[\n",
      prompt.size(), session.context(), options.logprobs_top_k)));
  for (size_t step = 0; step < steps; ++step) {
    if (interrupted()) return cancelled();
    DS4_ASSIGN(const Token selected, session.argmax());
    DS4_ASSIGN(const auto logits, session.logits());
    const auto top = top_logprobs(logits, options.logprobs_top_k);
    DS4_TRY(
        file.write((step > 0 ? ",\n" : "") + logprobs_step_json(engine.tokenizer(), step, selected, top)));
    if (selected == engine.tokenizer().special().eos || step + 1 == steps) break;
    DS4_TRY(session.eval(selected));
  }
  DS4_TRY(file.write("\n  ]\n}\n"));
  return file.commit();
}

Result<std::string> measure_perplexity(const Options& options, const std::string& text, const Engine& engine,
                                       Session& session) {
  constexpr size_t given = perplexity_given_tokens;
  const std::vector<Token> tokens = engine.tokenizer().encode_plain(text);
  if (tokens.size() <= given) {
    return fail(ErrorCode::invalid_argument,
                "{}: a text of {} token{} is too short to score; it takes more than {}",
                options.perplexity_path, tokens.size(), tokens.size() == 1 ? "" : "s", given);
  }
  if (session.context() <= given) {
    return fail(ErrorCode::invalid_argument,
                "a context of {} tokens is too small to score a text; it takes more than {}",
                session.context(), given);
  }
  const size_t room = static_cast<size_t>(session.context()) - given;
  const size_t scored = std::min({tokens.size() - given, options.max_tokens, room});
  DS4_TRY(sync_with_progress(session, std::span(tokens).first(given)));
  const auto begin = std::chrono::steady_clock::now();
  const auto scores = score_with_progress(session, std::span(tokens).subspan(given, scored));
  if (!scores) return scores.error();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;

  double nll = 0;
  size_t likeliest = 0;
  for (const TokenScore& score : *scores) {
    nll -= score.logprob;
    likeliest += score.likeliest;
  }
  const auto count = static_cast<double>(scored);
  const double average = nll / count;
  if (scored == room && scored < std::min(tokens.size() - given, options.max_tokens)) {
    warn(fmt::format("the context of {} tokens ends before the text does; --ctx N makes it larger",
                     session.context()));
  }
  say(fmt::format("top-1: {} of {} tokens ({:.2f} %), {:.2f} t/s", likeliest, scored,
                  100 * static_cast<double>(likeliest) / count, count / elapsed.count()));
  return fmt::format("tokens={} scored={} nll={:.9f} avg_nll={:.9f} ppl={:.9f}\n", tokens.size(), scored, nll,
                     average, std::exp(average));
}

}  // namespace ds4::cli
