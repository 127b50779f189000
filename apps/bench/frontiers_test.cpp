#include "frontiers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ds4::bench {
namespace {

using testing::ElementsAre;

std::vector<uint64_t> all(const FrontierSteps& steps) {
  std::vector<uint64_t> frontiers{steps.first};
  while (frontiers.back() < steps.last && frontiers.size() < 1000) {
    frontiers.push_back(next_frontier(steps, frontiers.back()));
  }
  return frontiers;
}

TEST(Frontiers, AddTheIncrementAndEndAtTheLast) {
  EXPECT_THAT(all({2048, 8192, 2048, 1.0}), ElementsAre(2048, 4096, 6144, 8192));
  EXPECT_THAT(all({2048, 7000, 2048, 1.0}), ElementsAre(2048, 4096, 6144, 7000));
  EXPECT_THAT(all({5, 5, 2048, 1.0}), ElementsAre(5));
  EXPECT_THAT(all({1, 100, 2147483647, 1.0}), ElementsAre(1, 100));
}

TEST(Frontiers, MultiplyAndRoundUp) {
  EXPECT_THAT(all({1000, 8000, 2048, 2.0}), ElementsAre(1000, 2000, 4000, 8000));
  EXPECT_THAT(all({10, 40, 1, 1.5}), ElementsAre(10, 15, 23, 35, 40));
  EXPECT_THAT(all({1, 1000000000, 1, 1e300}), ElementsAre(1, 1000000000));
}

TEST(Frontiers, AdvanceByOneAtLeast) {
  EXPECT_THAT(all({1, 4, 7, 1.0000001}), ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace ds4::bench
