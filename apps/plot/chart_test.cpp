#include "chart.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace ds4::plot {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string read_data(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(DS4_SOURCE_DIR "/tests/data/bench/" + name).rdbuf();
  return text.str();
}

std::vector<Point> points_of(const std::string& name) {
  const auto points = read_points(read_data(name), name);
  EXPECT_TRUE(points) << points.error().message;
  return points ? *points : std::vector<Point>();
}

TEST(Chart, OfOneMachineIsTheCommittedOne) {
  const std::string svg = draw_chart({{"m9_one", points_of("m9_one.csv")}}, {"M9 One t/s"});
  EXPECT_EQ(svg, read_data("m9_one_ts.svg"));
}

TEST(Chart, OfTwoMachinesIsTheCommittedOne) {
  const std::string svg = draw_chart({{"m9_one", points_of("m9_one.csv")}, {"other", points_of("other.csv")}},
                                     {"t/s over context"});
  EXPECT_EQ(svg, read_data("compared.svg"));
}

TEST(Chart, AxesBeginAtZero) {
  // 1.05 * 400 and 1.05 * 20 give axes that end at 500 and 25; the plot is 796 by 402 pixels.
  const std::string svg = draw_chart({{"a", {{500, 400, 20}, {1000, 200, 10}}}}, {"t"});
  EXPECT_THAT(svg, HasSubstr("points=\"480.00,146.40 878.00,307.20\""));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#2563eb\""));
  EXPECT_THAT(svg, Not(HasSubstr("dasharray")));
}

TEST(Chart, NothingDecodedIsALineAtZero) {
  const std::string svg = draw_chart({{"a", {{500, 400, 0}, {1000, 200, 0}}}}, {"t"});
  EXPECT_THAT(svg, HasSubstr("points=\"480.00,468.00 878.00,468.00\""));
}

TEST(Chart, TextCannotBecomeMarkup) {
  const std::string svg =
      draw_chart({{"<b>&", {{1, 1, 1}, {2, 1, 1}}}, {"x", {{1, 1, 1}, {2, 1, 1}}}}, {"a<script>\"&\x01\xff"});
  EXPECT_THAT(svg, HasSubstr(">a&lt;script&gt;&quot;&amp;^A\xef\xbf\xbd</text>"));
  EXPECT_THAT(svg, HasSubstr(">&lt;b&gt;&amp;</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
}

}  // namespace
}  // namespace ds4::plot
