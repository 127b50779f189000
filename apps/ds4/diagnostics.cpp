#include "diagnostics.hpp"

#include <unistd.h>

#include <algorithm>
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

constexpr size_t perplexity_context_tokens = 32;
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

Result<std::string> measure_perplexity(const Options& options, const Engine& engine, Session& session) {
  constexpr size_t given = perplexity_context_tokens;
  DS4_ASSIGN(const std::string text, read_file(options.perplexity_path));
  const std::vector<Token> tokens = engine.tokenizer().encode_plain(text);
  if (tokens.size() <= given) {
    return fail(ErrorCode::invalid_argument, "{}: {} tokens are too few to score; more than {} are needed",
                options.perplexity_path, tokens.size(), given);
  }
  if (session.context() <= given) {
    return fail(ErrorCode::invalid_argument,
                "a context of {} tokens is too small to score a text; more than {} are "
                "needed",
                session.context(), given);
  }
  const size_t room = static_cast<size_t>(session.context()) - given;
  const size_t scored = std::min({tokens.size() - given, options.max_tokens, room});
  DS4_TRY(sync_with_progress(session, std::span(tokens).first(given)));
  double nll = 0;
  for (size_t i = 0; i < scored; ++i) {
    if (interrupted()) return cancelled();
    const Token token = tokens[given + i];
    DS4_ASSIGN(const auto logits, session.logits());
    nll -= token_logprob(logits, token);
    if (i + 1 < scored) DS4_TRY(session.eval(token));
    if ((i + 1) % perplexity_report_tokens == 0) say(fmt::format("scored {} of {} tokens", i + 1, scored));
  }
  const double average = nll / static_cast<double>(scored);
  return fmt::format("tokens={} scored={} nll={:.9f} avg_nll={:.9f} ppl={:.9f}\n", tokens.size(), scored, nll,
                     average, std::exp(average));
}

}  // namespace ds4::cli
