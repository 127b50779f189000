#include "sampling/draw.hpp"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sampling/blocks.hpp"
#include "sampling/candidates.hpp"

namespace ds4::sampling {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float largest_float = std::numeric_limits<float>::max();

std::vector<float> random_logits(size_t count, float deviation, std::mt19937& random) {
  std::normal_distribution<float> bell(0, deviation);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = bell(random);
  return logits;
}

// Every kind of logits that must not confuse a choice.
std::vector<std::vector<float>> awkward_logits(size_t count, std::mt19937& random) {
  const std::vector<float> plain = random_logits(count, 3, random);
  std::vector<std::vector<float>> result(9, plain);
  for (size_t i = 0; i < count; ++i) {
    result[1][i] = std::floor(plain[i]);
    result[2][i] = 2.5f;
    result[3][i] = i % 2 == 0 ? 0.0f : -0.0f;
    if (i % 3 != 0) result[4][i] = -infinity;
    if (i % 4 == 1) result[5][i] = nan_value;
    if (i % 4 == 2) result[5][i] = infinity;
    result[6][i] = i % 7 == 0 ? -largest_float : plain[i] * 1e37f;
    result[7][i] = i % 2 == 0 ? largest_float : -largest_float;
    result[8][i] = 1e6f + plain[i];
  }
  return result;
}

/// The definition of docs/sampling.md, without any shortcut.
Token plain_draw(const std::vector<float>& logits, const SamplingParams& params, float uniform) {
  const DrawRule rule = normalized(params);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) candidates.push_back({logits[i], static_cast<Token>(i)});
  }
  if (candidates.empty()) return -1;
  const float maximum = std::min_element(candidates.begin(), candidates.end(), better)->logit;
  const Softmax softmax = make_softmax(maximum, rule);
  if (rule.top_k > 0 || rule.top_p < 1) std::sort(candidates.begin(), candidates.end(), better);
  if (rule.top_k > 0 && rule.top_k < candidates.size()) candidates.resize(rule.top_k);
  uint64_t total = 0;
  for (const Candidate& c : candidates) total += softmax.weight(c.logit);
  std::vector<uint64_t> weights;
  uint64_t kept = 0;
  for (const Candidate& c : candidates) {
    const float relative = softmax.relative(c.logit);
    weights.push_back(relative >= rule.min_p ? Softmax::whole(relative) : 0);
    kept += weights.back();
    if (rule.top_p < 1 && kept >= nucleus_target(rule.top_p, total)) break;
  }
  uint64_t rest = draw_target(uniform, kept);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= rest) return candidates[i].token;
    rest -= weights[i];
  }
  return -2;
}

TEST(Draw, EqualsThePlainDefinition) {
  std::mt19937 random(1);
  size_t draws = 0;
  for (const size_t count : {1ul, 2ul, 63ul, 64ul, 65ul, 300ul, 5000ul}) {
    for (const std::vector<float>& logits : awkward_logits(count, random)) {
      for (const float temperature : {1.0f, 0.1f, 1e-6f, 1e-40f, 3.0f, 50.0f, infinity}) {
        for (const int top_k : {0, 1, 40, 2000}) {
          for (const float top_p : {1.0f, 0.95f, 1e-3f}) {
            for (const float min_p : {0.0f, 0.05f, 7.0f}) {
              const SamplingParams params{temperature, top_k, top_p, min_p};
              const float uniform = static_cast<float>(random() >> 8) / 16777216.0f;
              ASSERT_EQ(draw(logits, params, uniform), plain_draw(logits, params, uniform))
                  << count << " logits, temperature " << temperature << ", top-k " << top_k << ", top-p "
                  << top_p << ", min-p " << min_p << ", uniform " << uniform;
              ++draws;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(draws, 7u * 9 * 7 * 4 * 3 * 3);
}

TEST(Draw, NothingFinite) {
  EXPECT_EQ(draw(std::vector<float>{nan_value, infinity, -infinity}, {}, 0.5f), -1);
  EXPECT_EQ(draw({}, {}, 0.5f), -1);
}

// The whole range of random numbers: the first picks the first kept token, the last the last.
TEST(Draw, BoundsOfTheRandomNumber) {
  const std::vector<float> logits{-infinity, 0, 0, -30, nan_value};
  constexpr float last = 1 - 1.0f / 16777216;
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.top_p = 0.999f}, SamplingParams{.top_k = 3}}) {
    EXPECT_EQ(draw(logits, params, 0), 1);
    EXPECT_EQ(draw(logits, params, 0.25f), 1);
    EXPECT_EQ(draw(logits, params, 0.75f), 2);
    EXPECT_EQ(draw(logits, params, last), 2);
  }
}

TEST(Weight, ExponentialIsAccurateAndExactAtZero) {
  EXPECT_EQ(exponential(0), 1.0f);
  double worst = 0;
  for (int i = 0; i <= 280000; ++i) {
    const float x = static_cast<float>(-i) / 10000;
    const double expected = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(exponential(x)) / expected - 1));
  }
  EXPECT_LT(worst, 1.5e-7);
}

TEST(Weight, TargetsAreRoundedUpAndNeverZero) {
  constexpr float unit = 1.0f / 16777216;
  EXPECT_EQ(draw_target(0, 100), 1u);
  EXPECT_EQ(draw_target(0.5f, 100), 50u);
  EXPECT_EQ(draw_target(0.5f, 101), 51u);
  EXPECT_EQ(draw_target(unit, uint64_t{1} << 24), 1u);
  EXPECT_EQ(draw_target(unit, (uint64_t{1} << 24) + 1), 2u);
  EXPECT_EQ(draw_target(1 - unit, uint64_t{1} << 59), (uint64_t{1} << 59) - (uint64_t{1} << 35));
  EXPECT_EQ(draw_target(0.25f, (uint64_t{1} << 59) + 3), (uint64_t{1} << 57) + 1);
  EXPECT_EQ(nucleus_target(0.5f, 10), 5u);
  EXPECT_EQ(nucleus_target(1e-9f, 10), 1u);
}

// The vectors, of any width, must do what the single operations do: the GPU relies on it.
TEST(Blocks, WeightsEqualThoseOfSingleLogits) {
  std::mt19937 random(2);
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  for (int round = 0; round < 200; ++round) {
    hwy::SetSupportedTargetsForTest(targets[static_cast<size_t>(round) % targets.size()]);
    for (const std::vector<float>& logits : awkward_logits(64, random)) {
      for (const float temperature : {1.0f, 0.37f, 1e-40f, 11.0f, infinity}) {
        for (const float min_p : {0.0f, 0.05f}) {
          const Softmax softmax = make_softmax(summarize(logits).maximum, {temperature, 0, 1, min_p});
          uint64_t expected = 0;
          for (const float logit : logits) {
            const float relative = softmax.relative(logit);
            if (relative >= min_p) expected += Softmax::whole(relative);
          }
          ASSERT_EQ(block_weight(logits, softmax, min_p), expected);
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(Blocks, SummariesNameTheFirstLargestFiniteLogit) {
  std::mt19937 random(3);
  for (const size_t count : {1ul, 63ul, 64ul, 65ul, 1000ul}) {
    for (const std::vector<float>& logits : awkward_logits(count, random)) {
      Token best = -1;
      bool has_nan = false;
      for (size_t i = 0; i < count; ++i) {
        has_nan |= std::isnan(logits[i]);
        if (!std::isfinite(logits[i])) continue;
        if (best < 0 || logits[i] > logits[static_cast<size_t>(best)]) best = static_cast<Token>(i);
      }
      const LogitSummary summary = summarize(logits);
      EXPECT_EQ(summary.best, best);
      EXPECT_EQ(summary.has_nan, has_nan);
      EXPECT_EQ(summary.maximum, logits[static_cast<size_t>(best)]);
    }
  }
  EXPECT_EQ(summarize({}).best, -1);
  EXPECT_TRUE(summarize(std::vector<float>(70, nan_value)).has_nan);
}

}  // namespace
}  // namespace ds4::sampling
