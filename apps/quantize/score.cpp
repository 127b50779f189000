#include "score.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "common/model_run.hpp"
#include "ds4/sampling.hpp"

namespace ds4::quantize {
namespace {

// A token that the model rules out would make the sum infinite.
constexpr double least_logprob = -1000;

/// Counts a scored token.
void count(ItemScore& score, double logprob, bool likeliest) {
  const bool along = score.continuations > 0 && score.greedy_prefix == score.tokens;
  score.nll -= std::max(logprob, least_logprob);
  score.likeliest += likeliest;
  if (score.continuations > 0) {
    ++score.continued_tokens;
    score.greedy_prefix += along && likeliest;
    score.first_matches += score.tokens == 0 && likeliest;
  }
  ++score.tokens;
}

class Scoring {
 public:
  Scoring(const Engine& engine, const std::vector<ScoreItem>& items, const ReferenceFile* reference,
          ReferenceWriter* writer, const ScoreCallbacks& callbacks)
      : engine_(engine), items_(items), reference_(reference), writer_(writer), callbacks_(callbacks) {
    sync_.cancelled = callbacks.cancelled;
    for (const ScoreItem& item : items) total_ += item.tokens.size();
  }

  Result<std::vector<ItemScore>> run() {
    size_t longest = 1;
    for (const ScoreItem& item : items_) longest = std::max(longest, item.tokens.size());
    DS4_ASSIGN(Session session, engine_.create_session(longest));
    std::vector<ItemScore> scores;
    for (size_t i = 0; i < items_.size(); ++i) {
      const ScoreItem& item = items_[i];
      const auto begin = std::chrono::steady_clock::now();
      ItemScore score;
      score.id = item.id;
      score.kind = item.kind;
      score.given = item.begin;
      score.continuations = item.kind == ItemKind::continuation;
      session.reset();
      DS4_TRY(session.sync(std::span(item.tokens).first(item.begin), sync_));
      done_ += item.begin;
      DS4_TRY(reference_ || writer_ ? step(session, i, score) : pass(session, item, score));
      score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      scores.push_back(std::move(score));
    }
    return scores;
  }

 private:
  Result<void> pass(Session& session, const ScoreItem& item, ItemScore& score) {
    SyncOptions options = sync_;
    options.on_progress = [&](size_t done, size_t) { report(done_ + done - item.begin); };
    DS4_ASSIGN(const auto tokens, session.score(std::span(item.tokens).subspan(item.begin), options));
    for (const TokenScore& token : tokens) count(score, double{token.logprob}, token.likeliest);
    done_ += tokens.size();
    report(done_);
    return {};
  }

  Result<void> step(Session& session, size_t number, ItemScore& score) {
    const ScoreItem& item = items_[number];
    if (writer_) DS4_TRY(writer_->begin_item(item));
    for (size_t i = 0; i < item.scored(); ++i) {
      if (callbacks_.cancelled && callbacks_.cancelled()) return fail(ErrorCode::cancelled, "interrupted");
      const Token target = item.tokens[item.begin + i];
      DS4_ASSIGN(const auto logits, session.logits());
      const Token likeliest = argmax(logits);
      count(score, LogSoftmax(logits)(logits[static_cast<size_t>(target)]), likeliest == target);
      if (writer_) DS4_TRY(writer_->add_position(logits, target));
      if (reference_) {
        DS4_TRY(reference_->read(number, i, position_));
        score.divergence += divergence(position_, logits);
        score.reference_nll -= std::max(double{position_.target_logprob}, least_logprob);
        score.agreements += likeliest == position_.likeliest;
      }
      report(++done_);
      if (i + 1 < item.scored()) DS4_TRY(session.eval(target));
    }
    return {};
  }

  void report(size_t done) const {
    if (callbacks_.progress) callbacks_.progress(done, total_);
  }

  const Engine& engine_;
  const std::vector<ScoreItem>& items_;
  const ReferenceFile* reference_;
  ReferenceWriter* writer_;
  const ScoreCallbacks& callbacks_;
  SyncOptions sync_;
  ReferencePosition position_;
  size_t done_ = 0, total_ = 0;
};

}  // namespace

ItemScore ModelScore::total() const {
  ItemScore sum;
  for (const ItemScore& item : items) {
    sum.given += item.given;
    sum.tokens += item.tokens;
    sum.nll += item.nll;
    sum.likeliest += item.likeliest;
    sum.continuations += item.continuations;
    sum.first_matches += item.first_matches;
    sum.greedy_prefix += item.greedy_prefix;
    sum.continued_tokens += item.continued_tokens;
    sum.seconds += item.seconds;
    sum.reference_nll += item.reference_nll;
    sum.divergence += item.divergence;
    sum.agreements += item.agreements;
  }
  return sum;
}

double divergence(const ReferencePosition& position, std::span<const float> logits) {
  const LogSoftmax log_softmax(logits);
  double sum = 0, kept = 0;
  for (size_t i = 0; i < position.logprobs.size(); ++i) {
    const size_t id = position.ids.empty() ? i : static_cast<size_t>(position.ids[i]);
    const double p = double{position.logprobs[i]}, q = std::max(log_softmax(logits[id]), least_logprob);
    kept += std::exp(q);
    if (p > least_logprob) sum += std::exp(p) * (p - q);
  }
  if (const double p = double{position.rest_logprob}; p > least_logprob) {
    const double q = std::log(std::max(1 - kept, std::exp(-600.0)));
    sum += std::exp(p) * (p - q);
  }
  return sum;
}

Result<std::vector<ItemScore>> score_items(const Engine& engine, const std::vector<ScoreItem>& items,
                                           const ReferenceFile* reference, ReferenceWriter* writer,
                                           const ScoreCallbacks& callbacks) {
  return Scoring(engine, items, reference, writer, callbacks).run();
}

Result<std::vector<ScoreItem>> continue_questions(const Engine& engine,
                                                  const std::vector<Question>& questions, size_t tokens,
                                                  const std::function<bool()>& cancelled) {
  std::vector<ScoreItem> items;
  for (const Question& question : questions) {
    ScoreItem item{question.id, ItemKind::continuation, question_tokens(question.text, engine.tokenizer()),
                   0};
    item.begin = item.tokens.size();
    DS4_ASSIGN(Session session, engine.create_session(item.begin + tokens));
    SyncOptions options;
    options.cancelled = cancelled;
    DS4_TRY(session.sync(item.tokens, options));
    while (item.scored() < tokens) {
      if (cancelled && cancelled()) return fail(ErrorCode::cancelled, "interrupted");
      DS4_ASSIGN(const Token token, session.argmax());
      if (cli::ends_reply(engine.tokenizer().special(), token)) break;
      item.tokens.push_back(token);
      if (item.scored() < tokens) DS4_TRY(session.eval(token));
    }
    if (item.scored() > 0) items.push_back(std::move(item));
  }
  return items;
}

}  // namespace ds4::quantize
