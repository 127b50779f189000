#include "model_check.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "common/console.hpp"
#include "ds4/chat.hpp"
#include "ds4/sampling.hpp"

namespace ds4::vectors {
namespace {

/// How the API spells the end of a reply, which is no entry of the vocabulary.
constexpr std::string_view official_eos = "<｜｜end▁of▁sentence｜｜>";

struct LocalToken {
  Token id = -1;
  std::string bytes;
  float logprob = 0;
};

void check_step(const RecordedStep& step, const std::vector<LocalToken>& local, const TokensByBytes& tokens,
                const std::string& place, CaseReport& report) {
  ++report.steps;
  const bool equal = !local.empty() && local.front().bytes == step.selected;
  report.equal_steps += equal;
  if (!equal) {
    report.complaints.push_back(fmt::format("{}: recorded {}, the model chooses {}", place,
                                            quote(step.selected),
                                            local.empty() ? "nothing" : quote(local.front().bytes)));
  }
  for (const RecordedToken& token : step.top) {
    if (tokens.find(token.bytes) < 0) continue;
    const auto found = std::find_if(local.begin(), local.end(), [&](const LocalToken& candidate) {
      return candidate.bytes == token.bytes;
    });
    if (found == local.end()) {
      report.complaints.push_back(
          fmt::format("{}: {} is not among the {} likeliest tokens", place, quote(token.bytes), local_top));
      continue;
    }
    const float difference = std::fabs(found->logprob - token.logprob);
    report.largest_difference = std::max(report.largest_difference, difference);
    if (!(difference <= logprob_tolerance)) {
      report.complaints.push_back(fmt::format("{}: the log-probability of {} is {:.3f}, recorded {:.3f}",
                                              place, quote(token.bytes), found->logprob, token.logprob));
    }
  }
}

void count_alternatives(const RecordedStep& step, const std::vector<LocalToken>& local, CaseReport& report,
                        const std::string& eos) {
  for (const RecordedToken& token : step.top) {
    if (token.logprob > unavailable_logprob) continue;
    const std::string& bytes = token.bytes == official_eos ? eos : token.bytes;
    ++report.alternatives;
    report.found_alternatives += std::any_of(
        local.begin(), local.end(), [&](const LocalToken& candidate) { return candidate.bytes == bytes; });
  }
}

}  // namespace

Result<std::vector<Vector>> read_vectors(const std::string& folder) {
  const std::string list = folder + "/official.vec";
  DS4_ASSIGN(const std::string text, cli::read_file(list));
  DS4_ASSIGN(auto cases, parse_cases(text, list));
  std::vector<Vector> vectors;
  for (RecordedCase& recorded : cases) {
    Vector vector;
    DS4_ASSIGN(vector.prompt, cli::read_file(folder + "/prompts/" + recorded.prompt_file));
    const std::string reply_path = folder + "/official/" + recorded.id + ".official.json";
    vector.has_reply = std::filesystem::exists(reply_path);
    if (vector.has_reply) {
      DS4_ASSIGN(const std::string reply, cli::read_file(reply_path));
      DS4_ASSIGN(vector.reply, parse_reply(reply, reply_path));
      DS4_TRY(check_agreement(recorded, vector.reply, vector.prompt));
    }
    vector.recorded = std::move(recorded);
    vectors.push_back(std::move(vector));
  }
  return vectors;
}

std::vector<Token> prompt_tokens(const Tokenizer& tokenizer, const std::string& prompt) {
  return render_chat({{.role = Role::user, .content = prompt}}, {.think = ThinkMode::none}).encode(tokenizer);
}

TokensByBytes::TokensByBytes(const Tokenizer& tokenizer) {
  const auto count = static_cast<Token>(tokenizer.vocabulary_size());
  tokens_.reserve(tokenizer.vocabulary_size());
  for (Token token = 0; token < count; ++token) tokens_.emplace(tokenizer.decode(token), token);
  tokens_.emplace(official_eos, tokenizer.special().eos);
}

Token TokensByBytes::find(const std::string& bytes) const {
  const auto found = tokens_.find(bytes);
  return found == tokens_.end() ? -1 : found->second;
}

Result<CaseReport> check_case(const Engine& engine, const TokensByBytes& tokens, const Vector& vector,
                              const SyncOptions& options) {
  const Tokenizer& tokenizer = engine.tokenizer();
  const std::vector<Token> prompt = prompt_tokens(tokenizer, vector.prompt);
  CaseReport report;
  report.prompt_tokens = prompt.size();
  if (vector.has_reply && prompt.size() != vector.reply.prompt_tokens) {
    report.complaints.push_back(fmt::format("the prompt has {} tokens, the hosted model counted {}",
                                            prompt.size(), vector.reply.prompt_tokens));
  }
  DS4_ASSIGN(Session session, engine.create_session(vector.recorded.context));
  DS4_TRY(session.sync(prompt, options));
  const auto& steps = vector.recorded.steps;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string place = fmt::format("step {}", i);
    DS4_ASSIGN(const auto logits, session.logits());
    std::vector<LocalToken> local;
    for (const TokenLogprob& token : top_logprobs(logits, local_top)) {
      local.push_back({token.token, tokenizer.decode(token.token), token.logprob});
    }
    check_step(steps[i], local, tokens, place, report);
    if (vector.has_reply) {
      count_alternatives(vector.reply.steps[i], local, report, tokenizer.decode(tokenizer.special().eos));
    }
    if (i + 1 == steps.size()) break;
    const bool equal = !local.empty() && local.front().bytes == steps[i].selected;
    const Token next = equal ? local.front().id : tokens.find(steps[i].selected);
    if (next < 0) {
      report.complaints.push_back(
          fmt::format("{}: no token has the bytes {}", place, quote(steps[i].selected)));
      break;
    }
    DS4_TRY(session.eval(next));
  }
  return report;
}

}  // namespace ds4::vectors
