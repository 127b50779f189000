// How likely the tokens of a known text are (docs/sampling.md §4).
#include <algorithm>

#include "backend/checks.hpp"
#include "base/error.hpp"
#include "engine/session_impl.hpp"
#include "sampling/draw.hpp"

namespace ds4 {
namespace {

/// Each has a row of logits on the host: 66 MB for 129,280 entries.
constexpr size_t score_chunk_tokens = 128;

TokenScore score_token(std::span<const float> logits, Token token) {
  return {token_logprob(logits, token), sampling::summarize(logits).best == token};
}

}  // namespace

Result<std::vector<TokenScore>> Session::score(std::span<const Token> tokens, const SyncOptions& options) {
  if (position() == 0) return fail(ErrorCode::invalid_argument, "the first token of a text has no score");
  if (tokens.size() > context() - std::min<uint64_t>(context(), position())) {
    return fail(ErrorCode::context_full, "{} tokens after {} do not fit the context of {}", tokens.size(),
                position(), context());
  }
  return impl_->guarded("scores", [&]() -> Result<std::vector<TokenScore>> {
    const uint32_t vocabulary = impl_->engine->info.vocabulary;
    std::vector<TokenScore> scores;
    if (tokens.empty()) return scores;
    DS4_TRY(backend::check_tokens(tokens, vocabulary));
    DS4_TRY(impl_->check_finite());
    DS4_ASSIGN(const auto first_logits, logits());
    scores.reserve(tokens.size());
    scores.push_back(score_token(first_logits, tokens.front()));

    const size_t total = position() + tokens.size();
    const size_t chunk = std::min<size_t>(score_chunk_tokens, impl_->engine->prefill_chunk);
    std::vector<float> rows;
    for (size_t done = 0; done < tokens.size();) {
      const size_t begin = position(), count = std::min(tokens.size() - done, chunk - begin % chunk);
      rows.resize(count * vocabulary);
      DS4_TRY(impl_->extend_chunk(tokens.subspan(done, count), total, count, rows, options));
      for (size_t i = 0; i < count; ++i) {
        const auto row = std::span<const float>(rows).subspan(i * vocabulary, vocabulary);
        if (auto sound = backend::check_summary(sampling::summarize(row), begin + i + 1); !sound) {
          DS4_TRY(impl_->fall_back(begin));
          return std::move(sound).error();
        }
        if (done + i + 1 < tokens.size()) scores.push_back(score_token(row, tokens[done + i + 1]));
      }
      DS4_TRY(impl_->add_anchor());
      done += count;
    }
    return scores;
  });
}

}  // namespace ds4
