#include "base/checked.hpp"

#include <gtest/gtest.h>

namespace ds4 {
namespace {

constexpr uint64_t kMax = UINT64_MAX;

TEST(Checked, Add) {
  EXPECT_EQ(checked_add(2, 3), 5U);
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_FALSE(checked_add(kMax, 1));
}

TEST(Checked, Multiply) {
  EXPECT_EQ(checked_multiply(1ULL << 32, (1ULL << 32) - 1), kMax - (1ULL << 32) + 1);
  EXPECT_EQ(checked_multiply(kMax, 0), 0U);
  EXPECT_FALSE(checked_multiply(1ULL << 32, 1ULL << 32));
}

TEST(Checked, RoundUp) {
  EXPECT_EQ(checked_round_up(0, 32), 0U);
  EXPECT_EQ(checked_round_up(1, 32), 32U);
  EXPECT_EQ(checked_round_up(32, 32), 32U);
  EXPECT_EQ(checked_round_up(7, 5), 10U);
  EXPECT_EQ(checked_round_up(kMax, 1), kMax);
  EXPECT_FALSE(checked_round_up(kMax, 32));
}

}  // namespace
}  // namespace ds4
