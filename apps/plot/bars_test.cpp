#include "bars.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::plot {
namespace {

using ::testing::HasSubstr;

TEST(Bars, AreAsLongAsTheirValues) {
  const std::string svg =
      draw_bars("a < b", {"one", "two"}, {{"KL", {1, 0.5}, {"1.0", "0.5"}}, {"size", {0, 0}, {"none", ""}}});
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr("width=\"144.00\""));
  EXPECT_THAT(svg, HasSubstr("width=\"72.00\""));
  EXPECT_THAT(svg, HasSubstr("width=\"0.00\""));
  EXPECT_THAT(svg, HasSubstr(">none</text>"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace ds4::plot
