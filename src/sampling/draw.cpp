#include "sampling/draw.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "sampling/blocks.hpp"
#include "sampling/candidates.hpp"

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

/// The distance below the maximum from which on exponents are less than this.
float distance_of(float exponent, const DrawRule& rule) {
  return exponent * rule.temperature;
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
  for_blocks_within(row, softmax.kept_reach, [&](size_t b) {
    blocks.push_back({b, block_weight(row.block(b), softmax, softmax.min_p)});
    total += blocks.back().weight;
  });
  uint64_t rest = draw_target(uniform, total);
  for (const BlockWeight& entry : blocks) {
    if (rest > entry.weight) {
      rest -= entry.weight;
      continue;
    }
    const auto logits = row.block(entry.block);
    for (size_t i = 0; i < logits.size(); ++i) {
      const uint64_t w = softmax.kept_weight(logits[i]);
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

/// Nucleus over the whole vocabulary. Looks near the maximum first, and further until there is enough.
Token draw_top_p(const Row& row, const Softmax& softmax, const DrawRule& rule, float uniform) {
  uint64_t total = 0;
  for_blocks_within(row, distance_of(lowest_exponent - 1, rule),
                    [&](size_t b) { total += block_weight(row.block(b), softmax, 0); });
  const uint64_t enough = nucleus_target(rule.top_p, total);
  std::vector<Candidate> candidates;
  uint64_t kept = 0;
  for (float exponent = -3; kept < enough; exponent *= 2) {
    const float distance = std::max(distance_of(exponent, rule), softmax.kept_reach);
    candidates.clear();
    kept = 0;
    for_blocks_within(row, distance, [&](size_t b) {
      const auto logits = row.block(b);
      for (size_t i = 0; i < logits.size(); ++i) {
        if (!(logits[i] - softmax.maximum >= distance)) continue;
        const uint64_t weight = softmax.kept_weight(logits[i]);
        if (weight == 0) continue;
        kept += weight;
        candidates.push_back({logits[i], static_cast<Token>(b * block_logits + i)});
      }
    });
    if (!(distance > softmax.kept_reach)) break;  // there are no others
  }
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

Softmax make_softmax(float maximum, const DrawRule& rule) {
  Softmax softmax;
  softmax.maximum = maximum;
  softmax.inverse_temperature = std::min(1.0f / rule.temperature, std::numeric_limits<float>::max());
  softmax.min_p = rule.min_p;
  // A thousandth is far more than exp() and log() round.
  const float exponent = rule.min_p > 0 ? std::log(rule.min_p) - 1e-3f : lowest_exponent - 1;
  softmax.kept_reach = distance_of(std::max(exponent, lowest_exponent - 1), rule);
  return softmax;
}

Token draw(std::span<const float> logits, const SamplingParams& params, float uniform) {
  const Row row(logits);
  if (row.summary.best < 0) return -1;
  const DrawRule rule = normalized(params);
  const Softmax softmax = make_softmax(row.summary.maximum, rule);
  if (rule.top_k > 0) return draw_top_k(row, softmax, rule, uniform);
  if (rule.top_p < 1) return draw_top_p(row, softmax, rule, uniform);
  return draw_by_id(row, softmax, uniform);
}

}  // namespace ds4::sampling
