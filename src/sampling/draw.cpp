#include "sampling/draw.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "sampling/block_maxima.hpp"
#include "sampling/candidates.hpp"
#include "sampling/weight.hpp"

namespace ds4::sampling {
namespace {

/// A row of logits with the maxima of its blocks.
struct Row {
  explicit Row(std::span<const float> row)
      : logits(row), maxima((row.size() + block_logits - 1) / block_logits) {
    summary.has_nan = block_maxima(logits, maxima);
    const auto best = std::max_element(maxima.begin(), maxima.end());
    if (best == maxima.end() || !std::isfinite(*best)) return;
    summary.maximum = *best;
    const auto begin = logits.begin() + (best - maxima.begin()) * static_cast<ptrdiff_t>(block_logits);
    summary.best = static_cast<Token>(std::find(begin, logits.end(), *best) - logits.begin());
  }

  std::span<const float> block(size_t b) const {
    const size_t begin = b * block_logits;
    return logits.subspan(begin, std::min(block_logits, logits.size() - begin));
  }

  std::span<const float> logits;
  std::vector<float> maxima;
  LogitSummary summary;
};

/// Logits that lie further than this below the maximum have no weight after min-p. Exponents are cut a
/// thousandth below log(min_p), far more than exp() and log() round.
float reach(const Softmax& softmax, float min_p) {
  const float exponent = min_p > 0 ? std::log(min_p) - 1e-3f : lowest_exponent;
  return std::max(exponent, lowest_exponent) * softmax.temperature;
}

/// Calls f(block) for the blocks that hold a logit no more than -`distance` below the maximum.
template <class F>
void for_blocks_within(const Row& row, float distance, const F& f) {
  for (size_t b = 0; b < row.maxima.size(); ++b) {
    if (row.maxima[b] - row.summary.maximum >= distance) f(b);
  }
}

/// min-p over the whole vocabulary, in id order.
Token draw_by_id(const Row& row, const Softmax& softmax, float uniform) {
  struct BlockWeight {
    size_t block;
    uint64_t weight;
  };
  std::vector<BlockWeight> blocks;
  uint64_t total = 0;
  const float distance = reach(softmax, softmax.min_p);
  const auto weight = [&](float logit) {
    return logit - softmax.maximum < distance ? 0 : softmax.kept_weight(logit);
  };
  for_blocks_within(row, distance, [&](size_t b) {
    uint64_t sum = 0;
    for (const float logit : row.block(b)) sum += weight(logit);
    if (sum > 0) blocks.push_back({b, sum});
    total += sum;
  });
  uint64_t rest = draw_target(uniform, total);
  for (const BlockWeight& entry : blocks) {
    if (rest > entry.weight) {
      rest -= entry.weight;
      continue;
    }
    const auto logits = row.block(entry.block);
    for (size_t i = 0; i < logits.size(); ++i) {
      const uint64_t w = weight(logits[i]);
      if (w >= rest) return static_cast<Token>(entry.block * block_logits + i);
      rest -= w;
    }
  }
  return row.summary.best;
}

/// min-p, top-p and the draw over candidates, best first; top-p counts against `total`.
Token draw_ranked(std::span<const Candidate> candidates, uint64_t total, const Softmax& softmax, float top_p,
                  float uniform) {
  const uint64_t enough = top_p < 1 ? nucleus_target(top_p, total) : total;
  std::vector<uint64_t> weights;
  uint64_t kept = 0;
  for (size_t i = 0; i < candidates.size() && kept < enough; ++i) {
    weights.push_back(softmax.kept_weight(candidates[i].logit));
    kept += weights.back();
  }
  uint64_t rest = draw_target(uniform, kept);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= rest) return candidates[i].token;
    rest -= weights[i];
  }
  return candidates.front().token;
}

Token draw_top_k(const Row& row, const Softmax& softmax, const DrawRule& rule, float uniform) {
  std::array<Candidate, max_top_k> buffer;
  const size_t count = best_candidates(row.logits, row.maxima, std::span(buffer).first(rule.top_k));
  const std::span<const Candidate> candidates(buffer.data(), count);
  uint64_t total = 0;
  for (const Candidate& c : candidates) total += softmax.weight(c.logit);
  return draw_ranked(candidates, total, softmax, rule.top_p, uniform);
}

/// Nucleus over the whole vocabulary. Ranks only the candidates near enough to be in it.
Token draw_top_p(const Row& row, const Softmax& softmax, const DrawRule& rule, float uniform) {
  std::array<uint64_t, distance_bins> kept_by_distance{};
  uint64_t total = 0;
  const float distance = reach(softmax, 0);
  for_blocks_within(row, distance, [&](size_t b) {
    for (const float logit : row.block(b)) {
      if (!(logit - softmax.maximum >= distance) || !is_finite(logit)) continue;
      const float relative = softmax.relative(logit);
      const uint64_t weight = Softmax::whole(relative);
      total += weight;
      if (relative >= softmax.min_p) kept_by_distance[distance_bin(softmax.maximum, logit)] += weight;
    }
  });
  const uint64_t enough = nucleus_target(rule.top_p, total);
  uint32_t last_bin = 0;
  for (uint64_t kept = kept_by_distance[0]; kept < enough && last_bin + 1 < distance_bins;) {
    kept += kept_by_distance[++last_bin];
  }
  std::vector<Candidate> candidates;
  for_blocks_within(row, reach(softmax, softmax.min_p), [&](size_t b) {
    const auto logits = row.block(b);
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!is_finite(logits[i]) || distance_bin(softmax.maximum, logits[i]) > last_bin) continue;
      if (softmax.kept_weight(logits[i]) == 0) continue;
      candidates.push_back({logits[i], static_cast<Token>(b * block_logits + i)});
    }
  });
  std::sort(candidates.begin(), candidates.end(), better);
  return draw_ranked(candidates, total, softmax, rule.top_p, uniform);
}

}  // namespace

LogitSummary summarize(std::span<const float> logits) {
  return Row(logits).summary;
}

DrawRule normalized(const SamplingParams& params) {
  DrawRule rule;
  rule.temperature = params.temperature;
  if (params.top_k > 0) rule.top_k = std::min(static_cast<uint32_t>(params.top_k), max_top_k);
  if (params.top_p > 0 && params.top_p < 1) rule.top_p = params.top_p;
  if (params.min_p > 0) rule.min_p = std::min(params.min_p, 1.0f);
  return rule;
}

Token draw(std::span<const float> logits, const SamplingParams& params, float uniform) {
  const Row row(logits);
  if (row.summary.best < 0) return -1;
  const DrawRule rule = normalized(params);
  const Softmax softmax{row.summary.maximum, rule.temperature, rule.min_p};
  if (rule.top_k > 0) return draw_top_k(row, softmax, rule, uniform);
  if (rule.top_p < 1) return draw_top_p(row, softmax, rule, uniform);
  return draw_by_id(row, softmax, uniform);
}

}  // namespace ds4::sampling
