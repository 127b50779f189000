// The part of the scheduler that makes the next tokens of all answers.
#include <algorithm>
#include <array>
#include <utility>

#include "server/scheduler.hpp"

namespace ds4::server {
namespace {

// How often the memory of growing conversations is looked at.
constexpr uint64_t growth_check_steps = 64;

}  // namespace

// The next token of every answer, in as few passes as possible.
void Scheduler::decode_step() {
  std::vector<Row> rows;
  for (const auto& job : jobs_) {
    for (Choice& choice : job->choices) {
      if (!choice.answer.finished()) rows.push_back({job.get(), &choice});
    }
  }
  if (rows.empty()) return;
  const bool alone = rows.size() == 1 && decode_alone(rows[0]);
  std::vector<Row> going;
  for (size_t i = 0; i < rows.size() && !alone; ++i) {
    // The last token as well: the conversation goes on behind it.
    const bool room = rows[i].choice->resident->session().position() < options_.pool.context;
    if (choose(rows[i]) && room) going.push_back(rows[i]);
  }
  const auto publish_all = [&] {
    for (const Row& row : rows) publish(*row.job, *row.choice);
  };
  publish_all();  // clients see the tokens before the next ones are computed
  // The request that was taken up last may have more answers than a pass had room for.
  for (size_t i = 0; i < going.size(); i += max_batch_rows) {
    evaluate(std::span(going).subspan(i, std::min(max_batch_rows, going.size() - i)));
  }
  for (const Row& row : rows) save_growth(row);
  if (++decode_steps_ % growth_check_steps == 0) pool_.trim();
  publish_all();
  std::vector<Job*> owners;
  for (const Row& row : rows) {
    if (owners.empty() || owners.back() != row.job) owners.push_back(row.job);
  }
  for (Job* job : owners) finish_if_done(*job);
}

// False if there is nothing to append.
bool Scheduler::choose(const Row& row) {
  Answer& answer = row.choice->answer;
  const auto token = pick(*row.choice);
  if (!token) {
    answer.finish(FinishReason::error, engine_error(token.error()));
    return false;
  }
  std::optional<ScoredToken> score;
  if (row.job->request.logprobs) score = score_token(*row.choice, *token, row.job->request.top_logprobs);
  const size_t before = answer.tokens().size();
  answer.accept(*token, std::move(score));
  const bool taken = answer.tokens().size() > before;
  if (taken) metrics_.generated_tokens.add();
  return taken;
}

Result<Token> Scheduler::pick(Choice& choice) {
  if (const auto forced = choice.answer.forced()) return *forced;
  const Session& session = choice.resident->session();
  const SamplingParams params = choice.answer.sampling();
  const std::span<const uint64_t> mask = choice.answer.mask();
  return mask.empty() ? session.sample(params, choice.answer.rng())
                      : session.sample(params, choice.answer.rng(), mask);
}

std::optional<ScoredToken> Scheduler::score_token(const Choice& choice, Token token, size_t alternatives) {
  const auto logits = choice.resident->session().logits();
  if (!logits) return std::nullopt;
  ScoredToken score{tokenizer().decode(token), token_logprob(*logits, token), {}};
  for (const TokenLogprob& top : top_logprobs(*logits, alternatives)) {
    score.top.push_back({tokenizer().decode(top.token), top.logprob});
  }
  return score;
}

// With drafts, several tokens at a time. False if this answer's tokens have to be looked at one by one.
bool Scheduler::decode_alone(const Row& row) {
  Choice& choice = *row.choice;
  const bool drafts = engine_.info().drafter && options_.speculation.depth > 0;
  if (!drafts || row.job->request.logprobs || choice.answer.free_tokens() < 2) return false;
  const SpecialTokens& special = tokenizer().special();
  const std::array<Token, 3> stops{special.eos, special.bos, special.user};
  const auto tokens = choice.resident->session().generate(choice.answer.sampling(), choice.answer.rng(),
                                                          choice.answer.free_tokens(), stops);
  metrics_.decode_steps.add();
  metrics_.batch_rows.observe(1);
  if (!tokens) {
    recover(row, tokens.error());
    return true;
  }
  metrics_.generated_tokens.add(static_cast<double>(tokens->size()));
  for (const Token token : *tokens) {
    if (!choice.answer.accept(token, std::nullopt)) break;
  }
  return true;
}

void Scheduler::evaluate(std::span<const Row> rows) {
  metrics_.decode_steps.add();
  metrics_.batch_rows.observe(static_cast<double>(rows.size()));
  std::vector<BatchRow> batch;
  batch.reserve(rows.size());
  for (const auto& [job, choice] : rows) {
    batch.push_back({&choice->resident->session(), choice->answer.tokens().back()});
  }
  const auto results = engine_.eval_batch(batch);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!results) {
      recover(rows[i], results.error());
    } else if (!(*results)[i]) {
      recover(rows[i], (*results)[i].error());
    }
  }
}

// For want of memory idle conversations are given up until the answer's tokens are all there; the state may
// have been lost with the memory. Any other error ends the answer.
void Scheduler::recover(const Row& row, Error error) {
  const auto& [job, choice] = row;
  std::vector<Token> tokens = job->lease.tokens;
  tokens.insert(tokens.end(), choice->answer.tokens().begin(), choice->answer.tokens().end());
  SyncOptions control;
  control.cancelled = [&, sink = job->sink] { return stopping_ || sink->gone(); };
  while (error.code == ErrorCode::out_of_memory && free_memory(*job)) {
    const auto synced = choice->resident->session().sync(tokens, control);
    if (synced) return;
    error = synced.error();
  }
  choice->answer.finish(FinishReason::error, engine_error(error));
}

}  // namespace ds4::server
