#include "ds4/sampling.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace ds4 {
namespace {

constexpr size_t max_top_k = 1024;

struct Candidate {
  float logit = 0;
  Token token = 0;
};

/// The order of choice: larger logit first, then lower id.
bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

/// Keeps the `out.size()` best finite logits and returns how many there are, best first.
size_t best_candidates(std::span<const float> logits, std::span<Candidate> out) {
  size_t count = 0;  // out[0, count) is a heap whose front is the worst kept candidate
  if (out.empty()) return 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) continue;
    const Candidate candidate{logits[i], static_cast<Token>(i)};
    if (count < out.size()) {
      out[count++] = candidate;
      std::push_heap(out.begin(), out.begin() + count, better);
    } else if (better(candidate, out.front())) {
      std::pop_heap(out.begin(), out.end(), better);
      out.back() = candidate;
      std::push_heap(out.begin(), out.end(), better);
    }
  }
  std::sort_heap(out.begin(), out.begin() + count, better);
  return count;
}

/// Logits to unnormalised probabilities; the best token has weight 1.
struct Softmax {
  float maximum;
  float temperature;

  float exponent(float logit) const { return (logit - maximum) / temperature; }
  float weight(float logit) const { return std::exp(exponent(logit)); }
};

/// Exponents below this have weights under `min_p` with certainty, so that most of the vocabulary needs no
/// exp(). The slack of 0.001 is far above the rounding of exp() and log().
float hopeless_exponent(float min_p) {
  return min_p > 0 ? std::log(min_p) - 1e-3f : -std::numeric_limits<float>::infinity();
}

/// Temperature softmax and min-p over the whole vocabulary, in id order, without sorting.
Token draw_unsorted(std::span<const float> logits, const Softmax& softmax, Token best, float min_p,
                    Rng& rng) {
  const float hopeless = hopeless_exponent(min_p);
  const auto kept_weight = [&](float logit) {
    if (!std::isfinite(logit) || softmax.exponent(logit) < hopeless) return 0.0f;
    const float weight = softmax.weight(logit);
    return weight >= min_p ? weight : 0.0f;
  };
  float sum = 0;
  for (const float logit : logits) sum += kept_weight(logit);
  if (!(sum > 0) || !std::isfinite(sum)) return best;
  float rest = rng.uniform() * sum;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float weight = kept_weight(logits[i]);
    if (weight <= 0) continue;
    rest -= weight;
    if (rest <= 0) return static_cast<Token>(i);
  }
  return best;
}

/// min-p, top-p and the draw over candidates taken best first. `next(i)` gives the i-th best; `sum`
/// normalises.
template <class Next>
Token draw_sorted(size_t count, float sum, const Softmax& softmax, const SamplingParams& params, Rng& rng,
                  const Next& next) {
  const float threshold = softmax.weight(next(0).logit) / sum * params.min_p;
  float kept_sum = 0;
  size_t kept = 0;
  for (; kept < count; ++kept) {
    const float weight = softmax.weight(next(kept).logit);
    if (kept > 0 && weight / sum < threshold) break;
    kept_sum += weight;
    if (kept_sum / sum >= params.top_p) {
      ++kept;
      break;
    }
  }
  float rest = rng.uniform() * kept_sum;
  for (size_t i = 0; i < kept; ++i) {
    rest -= softmax.weight(next(i).logit);
    if (rest <= 0) return next(i).token;
  }
  return next(kept - 1).token;
}

Token draw_top_k(std::span<const float> logits, const Softmax& softmax, const SamplingParams& params,
                 Rng& rng) {
  std::array<Candidate, max_top_k> buffer;
  const std::span wanted(buffer.data(), std::min<size_t>(static_cast<size_t>(params.top_k), max_top_k));
  const size_t count = best_candidates(logits, wanted);
  float sum = 0;
  for (size_t i = 0; i < count; ++i) sum += softmax.weight(buffer[i].logit);
  if (!(sum > 0) || !std::isfinite(sum)) return buffer[0].token;
  return draw_sorted(count, sum, softmax, params, rng,
                     [&](size_t i) -> const Candidate& { return buffer[i]; });
}

/// Nucleus over the whole vocabulary. Sorts only as far as the walk goes.
Token draw_top_p(std::span<const float> logits, const Softmax& softmax, Token best,
                 const SamplingParams& params, Rng& rng) {
  const float hopeless = hopeless_exponent(params.min_p);
  std::vector<Candidate> candidates;
  float sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) continue;
    sum += softmax.weight(logits[i]);
    if (!(softmax.exponent(logits[i]) < hopeless)) candidates.push_back({logits[i], static_cast<Token>(i)});
  }
  if (!(sum > 0) || !std::isfinite(sum)) return best;
  const auto worse = [](const Candidate& a, const Candidate& b) { return better(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), worse);
  size_t sorted = 0;  // the last `sorted` elements are the best ones, best last
  return draw_sorted(candidates.size(), sum, softmax, params, rng, [&](size_t i) -> const Candidate& {
    while (sorted <= i) {
      std::pop_heap(candidates.begin(), candidates.end() - static_cast<std::ptrdiff_t>(sorted), worse);
      ++sorted;
    }
    return candidates[candidates.size() - 1 - i];
  });
}

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
  Token best = 0;
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > largest && std::isfinite(logits[i])) {
      largest = logits[i];
      best = static_cast<Token>(i);
    }
  }
  return best;
}

Token sample(std::span<const float> logits, const SamplingParams& params, Rng& rng) {
  const Token best = argmax(logits);
  if (!(params.temperature > 0)) return best;
  if (logits.empty() || !std::isfinite(logits[static_cast<size_t>(best)])) return best;

  SamplingParams used = params;
  if (!(used.top_p > 0) || used.top_p > 1) used.top_p = 1;
  if (!(used.min_p > 0)) used.min_p = 0;
  const Softmax softmax{logits[static_cast<size_t>(best)], used.temperature};
  if (used.top_k > 0) return draw_top_k(logits, softmax, used, rng);
  if (used.top_p < 1) return draw_top_p(logits, softmax, best, used, rng);
  return draw_unsorted(logits, softmax, best, used.min_p, rng);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, size_t k) {
  double normalizer = 0;
  if (!log_sum_exp(logits, normalizer)) return {};
  std::vector<Candidate> candidates(std::min(k, logits.size()));
  candidates.resize(best_candidates(logits, candidates));
  std::vector<TokenLogprob> result;
  result.reserve(candidates.size());
  for (const Candidate& c : candidates) {
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
