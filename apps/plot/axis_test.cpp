#include "axis.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::plot {
namespace {

using testing::ElementsAre;

TEST(NiceCeil, RoundsTheMantissaUp) {
  EXPECT_DOUBLE_EQ(nice_ceil(1), 1);
  EXPECT_DOUBLE_EQ(nice_ceil(1.01), 2);
  EXPECT_DOUBLE_EQ(nice_ceil(2.2), 2.5);
  EXPECT_DOUBLE_EQ(nice_ceil(26), 30);
  EXPECT_DOUBLE_EQ(nice_ceil(431.2), 500);
  EXPECT_DOUBLE_EQ(nice_ceil(3100), 4000);
  EXPECT_DOUBLE_EQ(nice_ceil(5001), 10000);
  EXPECT_DOUBLE_EQ(nice_ceil(0.021), 0.025);
  EXPECT_DOUBLE_EQ(nice_ceil(0.1 + 0.2), 0.3);  // a rounding error above
  EXPECT_DOUBLE_EQ(nice_ceil(0), 1);
  EXPECT_DOUBLE_EQ(nice_ceil(-3), 1);
}

TEST(NiceStep, RoundsTheMantissaUp) {
  EXPECT_DOUBLE_EQ(nice_step(65536, 6), 20000);
  EXPECT_DOUBLE_EQ(nice_step(500, 5), 100);
  EXPECT_DOUBLE_EQ(nice_step(30, 5), 10);
  EXPECT_DOUBLE_EQ(nice_step(12, 5), 2.5);
  EXPECT_DOUBLE_EQ(nice_step(1, 5), 0.2);
}

TEST(Ticks, IncludeTheMaximum) {
  EXPECT_THAT(ticks(500, 100), ElementsAre(0, 100, 200, 300, 400, 500));
  EXPECT_THAT(ticks(0.3, 0.1), ElementsAre(0, 0.1, 0.2, 0.3));
  EXPECT_THAT(ticks(65536, 20000), ElementsAre(0, 20000, 40000, 60000));
}

TEST(TickText, CountsThousands) {
  EXPECT_EQ(tick_text(0), "0");
  EXPECT_EQ(tick_text(2.5), "2.5");
  EXPECT_EQ(tick_text(999), "999");
  EXPECT_EQ(tick_text(1000), "1k");
  EXPECT_EQ(tick_text(2500), "2.5k");
  EXPECT_EQ(tick_text(32768), "32.768k");
  EXPECT_EQ(tick_text(-2000), "-2k");
}

}  // namespace
}  // namespace ds4::plot
