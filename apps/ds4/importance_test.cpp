#include "importance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ds4::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ExpertInputSums two_layers() {
  ExpertInputSums sums;
  sums.layers = 2;
  sums.experts = 3;
  sums.width = 2;
  sums.expert_width = 1;
  sums.gate_up = {4, 8, 0, 0, 3, 6, 1, 2, 3, 4, 5, 6};
  sums.down = {2, 0, 9, 10, 20, 30};
  sums.tokens = {4, 0, 3, 1, 1, 1};
  return sums;
}

TEST(Importance, MeansOfSquaresAndOnesForExpertsNeverSeen) {
  const auto imatrix = importance_from(two_layers(), 0);
  ASSERT_TRUE(imatrix);
  ASSERT_EQ(imatrix->entries.size(), 6u);
  EXPECT_THAT(imatrix->entries.at("blk.0.ffn_gate_exps.weight"), ElementsAre(1, 2, 1, 1, 1, 2));
  EXPECT_THAT(imatrix->entries.at("blk.0.ffn_up_exps.weight"), ElementsAre(1, 2, 1, 1, 1, 2));
  EXPECT_THAT(imatrix->entries.at("blk.0.ffn_down_exps.weight"), ElementsAre(0.5f, 1, 3));
  EXPECT_THAT(imatrix->entries.at("blk.1.ffn_gate_exps.weight"), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(imatrix->entries.at("blk.1.ffn_down_exps.weight"), ElementsAre(10, 20, 30));
}

// Layer 0 has 7 observations whose mean is (1, 2): an expert with few of them moves towards that.
TEST(Importance, MissingSamplesCountAsTheLayersAverage) {
  auto sums = two_layers();
  sums.gate_up[4] = 9;  // expert 2, 3 observations; the sum of column 0 is now 13
  const auto imatrix = importance_from(sums, 4);
  ASSERT_TRUE(imatrix);
  const float average = 13.0f / 7;
  EXPECT_THAT(imatrix->entries.at("blk.0.ffn_gate_exps.weight"),
              ElementsAre(1, 2, average, 2, (9 + average) / 4, 2));
  EXPECT_THAT(
      imatrix->entries.at("blk.1.ffn_gate_exps.weight"),
      ElementsAre((1 + 3 * 3) / 4.0f, (2 + 3 * 4) / 4.0f, 3, 4, (5 + 3 * 3) / 4.0f, (6 + 3 * 4) / 4.0f));
}

TEST(Importance, ALayerWithoutTokensHasOnes) {
  auto sums = two_layers();
  sums.tokens.assign(6, 0);
  sums.gate_up.assign(12, 0);
  sums.down.assign(6, 0);
  for (const uint64_t samples : {0, 5}) {
    const auto imatrix = importance_from(sums, samples);
    ASSERT_TRUE(imatrix);
    for (const auto& [name, values] : imatrix->entries) EXPECT_THAT(values, ::testing::Each(1.0f)) << name;
  }
}

TEST(Importance, SumsThatAreNoNumbersAreRefused) {
  auto sums = two_layers();
  sums.down[4] = std::nan("");
  const auto imatrix = importance_from(sums, 0);
  ASSERT_FALSE(imatrix);
  EXPECT_EQ(imatrix.error().code, ErrorCode::not_finite);
  EXPECT_THAT(imatrix.error().message, HasSubstr("blk.1.ffn_down_exps.weight"));
}

}  // namespace
}  // namespace ds4::cli
