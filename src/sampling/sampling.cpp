#include "ds4/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling/blocks.hpp"
#include "sampling/candidates.hpp"
#include "sampling/draw.hpp"

namespace ds4 {
namespace {

/// log(sum(exp(logit))) over finite logits; false if there is none.
bool log_sum_exp(std::span<const float> logits, double& result) {
  double maximum = -std::numeric_limits<double>::infinity();
  for (const float logit : logits) {
    if (std::isfinite(logit)) maximum = std::max<double>(maximum, logit);
  }
  if (!std::isfinite(maximum)) return false;
  double sum = 0;
  for (const float logit : logits) {
    if (std::isfinite(logit)) sum += std::exp(logit - maximum);
  }
  result = maximum + std::log(sum);
  return true;
}

}  // namespace

uint64_t Rng::next() {
  uint64_t x = state_ != 0 ? state_ : 0x9e3779b97f4a7c15u;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  state_ = x;
  return x * 0x2545f4914f6cdd1du;
}

float Rng::uniform() {
  return static_cast<float>(next() >> 40) / 16777216.0f;
}

Token argmax(std::span<const float> logits) {
  return std::max(sampling::summarize(logits).best, 0);
}

Token sample(std::span<const float> logits, const SamplingParams& params, Rng& rng) {
  if (sampling::is_greedy(params)) return argmax(logits);
  Rng advanced = rng;
  const Token token = sampling::draw(logits, params, advanced.uniform());
  if (token < 0) return 0;
  rng = advanced;
  return token;
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, size_t k) {
  double normalizer = 0;
  if (!log_sum_exp(logits, normalizer)) return {};
  std::vector<float> maxima((logits.size() + sampling::block_logits - 1) / sampling::block_logits);
  sampling::block_maxima(logits, maxima);
  std::vector<sampling::Candidate> candidates(std::min(k, logits.size()));
  candidates.resize(sampling::best_candidates(logits, maxima, candidates));
  std::vector<TokenLogprob> result;
  result.reserve(candidates.size());
  for (const sampling::Candidate& c : candidates) {
    result.push_back({c.token, c.logit, static_cast<float>(c.logit - normalizer)});
  }
  return result;
}

float token_logprob(std::span<const float> logits, Token token) {
  constexpr float impossible = -std::numeric_limits<float>::infinity();
  if (token < 0 || static_cast<size_t>(token) >= logits.size()) return impossible;
  const float logit = logits[static_cast<size_t>(token)];
  double normalizer = 0;
  if (!std::isfinite(logit) || !log_sum_exp(logits, normalizer)) return impossible;
  return static_cast<float>(logit - normalizer);
}

}  // namespace ds4
