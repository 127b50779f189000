#include "backend/cpu/router.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/reference.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using test::random_floats;
using test::widen;
using Experts = std::vector<uint32_t>;

struct Routed {
  Experts experts;
  std::vector<float> weights;
};

Routed run(std::vector<float>& logits, const RouterSettings& settings, int32_t token = 0) {
  Routed out{Experts(settings.experts_used), std::vector<float>(settings.experts_used)};
  route(logits.data(), token, settings, out.experts.data(), out.weights.data());
  return out;
}

// Computed in double precision from the formulas of docs/model.md §8.1.
TEST(Router, CheckValues) {
  std::vector<float> logits = {-2, -1, 0, 0.5f, 1, 2, 3, -3};
  const std::vector<float> bias = {0, 0, 0.9f, 0, 0, 0, -1.5f, 2.0f};
  const Routed out = run(logits, {8, 6, 1.5f, bias.data()});
  const float probabilities[] = {0.356270f, 0.559698f, 0.832555f, 0.986953f,
                                 1.145976f, 1.458399f, 1.746020f, 0.220425f};
  for (size_t e = 0; e < 8; ++e) EXPECT_NEAR(logits[e], probabilities[e], 1e-6) << e;
  EXPECT_EQ(out.experts, (Experts{1, 2, 3, 4, 5, 7}));
  const float weights[] = {0.161327f, 0.239975f, 0.284479f, 0.330316f, 0.420368f, 0.063535f};
  for (size_t k = 0; k < 6; ++k) EXPECT_NEAR(out.weights[k], weights[k], 1e-6) << k;
}

TEST(Router, AgreesWithDoublePrecision) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const size_t experts = seed % 2 == 0 ? 256 : 384;
    std::vector<float> logits = random_floats(experts, seed, seed % 4 == 0 ? 15.0f : 1.0f);
    const std::vector<float> bias = random_floats(experts, 1000 + seed, 0.1f);
    std::vector<double> exact_logits = widen(logits);
    const auto exact = reference::route(exact_logits.data(), experts, 6, widen(bias).data(), {}, 2.5);
    const Routed out = run(logits, {experts, 6, 2.5f, bias.data()});
    EXPECT_EQ(out.experts, exact.experts) << seed;
    for (size_t k = 0; k < 6; ++k) {
      EXPECT_NEAR(out.weights[k], exact.weights[k], 2e-6 * exact.weights[k]) << seed << " " << k;
    }
    for (size_t e = 0; e < experts; ++e) ASSERT_NEAR(logits[e], exact_logits[e], 1e-6 * exact_logits[e]);
  }
}

TEST(Router, TiesGoToTheLowerExpert) {
  const std::vector<float> bias(10, 0.0f);
  std::vector<float> equal(10, 0.25f);
  EXPECT_EQ(run(equal, {10, 4, 1.0f, bias.data()}).experts, (Experts{0, 1, 2, 3}));
  std::vector<float> logits = {0, 1, 5, 1, 1, 0, 1, 5, 1, 1};
  EXPECT_EQ(run(logits, {10, 4, 1.0f, bias.data()}).experts, (Experts{1, 2, 3, 7}));
}

TEST(Router, BiasSelectsButDoesNotWeigh) {
  std::vector<float> bias(8, 0.0f);
  bias[6] = 100.0f, bias[7] = 100.0f;
  std::vector<float> logits(8, 0.0f);
  logits[7] = 3.0f;
  const Routed out = run(logits, {8, 2, 1.0f, bias.data()});
  EXPECT_EQ(out.experts, (Experts{6, 7}));
  EXPECT_NEAR(out.weights[0], logits[6] / (logits[6] + logits[7]), 1e-6);
  EXPECT_NEAR(out.weights[1], logits[7] / (logits[6] + logits[7]), 1e-6);
}

TEST(Router, TableOfTheTokensId) {
  const std::vector<int32_t> table = {0, 1, 2, 7, 3, 5};
  std::vector<float> logits = random_floats(8, 1);
  std::vector<double> exact_logits = widen(logits);
  RouterSettings settings{8, 3, 1.5f};
  settings.table = table.data();
  const auto exact = reference::route<double>(exact_logits.data(), 8, 3, nullptr, {7, 3, 5}, 1.5);
  const Routed out = run(logits, settings, 1);
  EXPECT_EQ(out.experts, (Experts{3, 5, 7}));
  for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(out.weights[k], exact.weights[k], 1e-6) << k;
}

// A table may name an expert twice: it then counts twice in the sum and is evaluated twice.
TEST(Router, TableWithAnExpertTwice) {
  const std::vector<int32_t> table = {4, 2, 4};
  std::vector<float> logits(8, 0.0f);
  RouterSettings settings{8, 3, 3.0f};
  settings.table = table.data();
  const Routed out = run(logits, settings);
  EXPECT_EQ(out.experts, (Experts{2, 4, 4}));
  for (float w : out.weights) EXPECT_NEAR(w, 1.0f, 1e-6);
}

TEST(Router, LargeAndSmallLogits) {
  const std::vector<float> bias(4, 0.0f);
  std::vector<float> large = {1e30f, 100, 20.5f, 19.5f};
  run(large, {4, 2, 1.0f, bias.data()});
  EXPECT_NEAR(large[0], 1e15f, 1e9f);
  EXPECT_FLOAT_EQ(large[1], 10.0f);
  EXPECT_NEAR(large[2], std::sqrt(20.5), 1e-6);
  EXPECT_NEAR(large[3], std::sqrt(std::log1p(std::exp(19.5))), 1e-6);
  // The sum of the probabilities is at least 2^-14, so vanishing ones give small weights, not noise.
  std::vector<float> small(4, -1000.0f);
  for (float w : run(small, {4, 2, 1.0f, bias.data()}).weights) EXPECT_EQ(w, 0.0f);
  std::vector<float> tiny(4, -22.0f);
  const Routed out = run(tiny, {4, 2, 1.0f, bias.data()});
  const double probability = std::exp(-11.0);
  for (float w : out.weights) EXPECT_NEAR(w, probability / std::max(2 * probability, 0x1p-14), 1e-6);
}

// Logits of a damaged model may be anything: the experts stay distinct and within the layer.
TEST(Router, NanLogitsStillSelectExperts) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> bias(16, 0.0f);
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::vector<float> logits = random_floats(16, seed);
    std::mt19937 random(seed);
    for (float& x : logits) {
      if (random() % 4 <= seed % 4) x = random() % 3 == 0 ? -nan : nan;
    }
    if (seed == 0) std::fill(logits.begin(), logits.end(), nan);
    const Routed out = run(logits, {16, 6, 1.0f, bias.data()});
    for (size_t k = 0; k < 6; ++k) {
      EXPECT_LT(out.experts[k], 16u);
      if (k > 0) {
        EXPECT_LT(out.experts[k - 1], out.experts[k]);
      }
    }
  }
}

}  // namespace
}  // namespace ds4::cpu
