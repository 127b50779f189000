#include "ds4/sampling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include <boost/json.hpp>

namespace ds4 {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

boost::json::value load_cases() {
  std::ifstream file(DS4_SOURCE_DIR "/tests/data/sampler-cases.json");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  return boost::json::parse(text);
}

float number(const boost::json::value& v) {
  return static_cast<float>(v.to_number<double>());
}

TEST(Rng, MatchesTheRecordedSequences) {
  const auto cases = load_cases();
  Rng state_rng, float_rng;
  size_t checked = 0;
  for (const auto& entry : cases.at("rng").as_array()) {
    if (entry.at("i").to_number<int>() == 0) {
      const uint64_t seed = std::stoull(std::string(entry.at("seed").as_string()));
      state_rng = Rng(seed);
      float_rng = Rng(seed);
    }
    EXPECT_EQ(state_rng.next(), std::stoull(std::string(entry.at("out").as_string()), nullptr, 16));
    EXPECT_EQ(state_rng.state(), std::stoull(std::string(entry.at("state").as_string()), nullptr, 16));
    EXPECT_EQ(float_rng.uniform(), entry.at("top24").to_number<float>() / 16777216.0f);
    ++checked;
  }
  EXPECT_EQ(checked, 20u);
}

TEST(Sample, MatchesTheRecordedDraws) {
  const auto cases = load_cases();
  size_t checked = 0;
  for (const auto& entry : cases.at("sampler").as_array()) {
    std::vector<float> logits;
    for (const auto& v : entry.at("logits").as_array()) logits.push_back(number(v));
    SamplingParams params;
    params.temperature = number(entry.at("temperature"));
    params.top_k = entry.at("top_k").to_number<int>();
    params.top_p = number(entry.at("top_p"));
    params.min_p = number(entry.at("min_p"));
    Rng rng(entry.at("seed").to_number<uint64_t>());
    for (const auto& draw : entry.at("draws").as_array()) {
      EXPECT_EQ(sample(logits, params, rng), draw.to_number<Token>()) << boost::json::serialize(entry);
    }
    ++checked;
  }
  EXPECT_EQ(checked, 7u);
}

TEST(Sample, GreedyConsumesNoRandomNumber) {
  Rng rng(42);
  const std::vector<float> logits{0, 3, 3, 1};
  EXPECT_EQ(sample(logits, {.temperature = 0}, rng), 1);
  EXPECT_EQ(sample(logits, {.temperature = -1}, rng), 1);
  EXPECT_EQ(sample(logits, {.temperature = nan_value}, rng), 1);
  EXPECT_EQ(rng.state(), 42u);
}

TEST(Sample, EveryPathConsumesOneRandomNumber) {
  const std::vector<float> logits{0, 1, 2, 3};
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.top_p = 0.9f}, SamplingParams{.top_k = 2}}) {
    Rng rng(42), expected(42);
    sample(logits, params, rng);
    expected.next();
    EXPECT_EQ(rng.state(), expected.state());
  }
}

TEST(Sample, NeverChoosesNonFiniteLogits) {
  const std::vector<float> logits{nan_value, inf, 1, -inf, 1.5f, nan_value};
  Rng rng(7);
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0}, SamplingParams{.min_p = 0},
        SamplingParams{.top_p = 0.99f, .min_p = 0}, SamplingParams{.top_k = 6}}) {
    for (int i = 0; i < 200; ++i) {
      const Token token = sample(logits, params, rng);
      EXPECT_TRUE(token == 2 || token == 4) << token;
    }
  }
}

TEST(Sample, NothingFiniteGivesZero) {
  const std::vector<float> logits{nan_value, -inf, inf};
  Rng rng(7);
  EXPECT_EQ(sample(logits, {}, rng), 0);
  EXPECT_EQ(sample(logits, {.top_k = 2}, rng), 0);
  EXPECT_EQ(sample({}, {}, rng), 0);
}

TEST(Sample, VeryNegativeLogitsAreStillLogits) {
  const std::vector<float> logits{-3e30f, -2e30f, -2.5e30f};
  Rng rng(7);
  EXPECT_EQ(sample(logits, {}, rng), 1);
  EXPECT_EQ(argmax(logits), 1);
}

TEST(Sample, TopKKeepsEarlierTokensOfEqualLogits) {
  const std::vector<float> logits{1, 2, 2, 2, 2};
  Rng rng(3);
  for (int i = 0; i < 200; ++i) {
    const Token token = sample(logits, {.top_k = 2, .min_p = 0}, rng);
    EXPECT_TRUE(token == 1 || token == 2) << token;
  }
}

TEST(Sample, OutOfRangeParametersAreSwitchedOff) {
  const std::vector<float> logits{1, 2, 3, 0.5f};
  for (const float top_p : {0.0f, -1.0f, 1.5f, nan_value}) {
    Rng a(11), b(11);
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(sample(logits, {.top_p = top_p, .min_p = -2}, a),
                sample(logits, {.top_p = 1, .min_p = 0}, b));
    }
  }
  // More than the 1024 that are ranked at most.
  std::vector<float> flat(3000, 1.0f);
  Rng rng(5);
  for (int i = 0; i < 200; ++i) EXPECT_LT(sample(flat, {.top_k = 5000, .min_p = 0}, rng), 1024);
}

TEST(Sample, MinPExcludesUnlikelyTokens) {
  // Weights relative to the best token: 1, 0.5, 0.049.
  const std::vector<float> logits{0, std::log(0.5f), std::log(0.049f)};
  Rng rng(9);
  bool second = false;
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.top_p = 0.999f}, SamplingParams{.top_k = 3}}) {
    for (int i = 0; i < 500; ++i) {
      const Token token = sample(logits, params, rng);
      EXPECT_NE(token, 2);
      second |= token == 1;
    }
  }
  EXPECT_TRUE(second);
}

TEST(Sample, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits{std::log(0.6f), std::log(0.3f), std::log(0.1f)};
  const double expected[] = {0.6, 0.3, 0.1};
  for (const SamplingParams& params :
       {SamplingParams{.min_p = 0}, SamplingParams{.top_p = 0.9999f, .min_p = 0},
        SamplingParams{.top_k = 3, .min_p = 0}}) {
    Rng rng(123);
    int counts[3] = {};
    constexpr int draws = 100000;
    for (int i = 0; i < draws; ++i) ++counts[sample(logits, params, rng)];
    for (int t = 0; t < 3; ++t) EXPECT_NEAR(counts[t] / double(draws), expected[t], 0.01);
  }
}

TEST(Argmax, FirstOfEqualAndNeverNan) {
  EXPECT_EQ(argmax(std::vector<float>{1, 5, 5}), 1);
  EXPECT_EQ(argmax(std::vector<float>{nan_value, -5, nan_value}), 1);
  EXPECT_EQ(argmax(std::vector<float>{nan_value}), 0);
  EXPECT_EQ(argmax({}), 0);
}

TEST(TopLogprobs, OrderTiesAndValues) {
  const std::vector<float> logits{1, 3, nan_value, 3, 2, -inf};
  const auto top = top_logprobs(logits, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[1].token, 3);
  EXPECT_EQ(top[2].token, 4);
  const double normalizer = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  EXPECT_FLOAT_EQ(top[0].logprob, static_cast<float>(3 - normalizer));
  EXPECT_FLOAT_EQ(top[2].logprob, static_cast<float>(2 - normalizer));
  EXPECT_EQ(top[2].logit, 2);
  EXPECT_EQ(token_logprob(logits, 4), top[2].logprob);
}

TEST(TopLogprobs, CappedByTheFiniteVocabulary) {
  EXPECT_EQ(top_logprobs(std::vector<float>{1, 2, inf}, 20).size(), 2u);
  EXPECT_TRUE(top_logprobs(std::vector<float>{nan_value}, 20).empty());
  EXPECT_TRUE(top_logprobs(std::vector<float>{1, 2}, 0).empty());
}

TEST(TokenLogprob, ImpossibleTokens) {
  const std::vector<float> logits{1, nan_value, 2};
  EXPECT_EQ(token_logprob(logits, -1), -inf);
  EXPECT_EQ(token_logprob(logits, 3), -inf);
  EXPECT_EQ(token_logprob(logits, 1), -inf);
  EXPECT_FALSE(std::isnan(token_logprob(logits, 2)));
}

}  // namespace
}  // namespace ds4
