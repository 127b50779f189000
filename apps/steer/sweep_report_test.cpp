#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sweep.hpp"

namespace ds4::steer {
namespace {

using ::testing::HasSubstr;

std::vector<ScaleRow> sample() {
  return {{.scale = -1, .words = 2.5, .tokens = 4, .projection = -8, .asked = 4, .right = 1, .cut = 2},
          {.scale = 0.5f, .words = 10, .tokens = 12.25, .projection = 0.125, .asked = 4, .right = 4}};
}

TEST(SweepTable, ColumnsOfEqualWidth) {
  EXPECT_EQ(sweep_table(sample(), 5),
            "   scale    words   tokens  projection     right       cut\n"
            "      -1      2.5      4.0     -8.0000       1/4       2/5\n"
            "     0.5     10.0     12.2      0.1250       4/4       0/5\n");
}

TEST(SweepTable, NothingAsked) {
  EXPECT_EQ(sweep_table({{.scale = 1, .words = 3}}, 1),
            "   scale    words   tokens  projection     right       cut\n"
            "       1      3.0      0.0      0.0000         -       0/1\n");
}

TEST(SweepCsv, OneLineAScale) {
  EXPECT_EQ(sweep_csv(sample()),
            "scale,words,tokens,projection,asked,right,cut\n"
            "-1,2.500,4.000,-8.000000,4,1,2\n"
            "0.5,10.000,12.250,0.125000,4,4,0\n");
}

// Panel i spans y 60 + 228 i to 230 + 228 i, scales x 80 to 690.
TEST(SweepChart, PointsLieWhereTheyShould) {
  const std::string svg = sweep_chart(sample(), "a<b & c");
  EXPECT_THAT(svg, HasSubstr("width=\"720\" height=\"736\""));
  EXPECT_THAT(svg, HasSubstr(">a&lt;b &amp; c</text>"));
  // Words, 0 to 10: 2.5 is a quarter of the height.
  EXPECT_THAT(svg,
              HasSubstr("<polyline points=\"80.00,187.50 690.00,60.00\" fill=\"none\" stroke=\"#2563eb\""));
  // Projection, -10 to 0.2: -8 is 2 of 10.2 above the lower end.
  EXPECT_THAT(svg,
              HasSubstr("<polyline points=\"80.00,424.67 690.00,289.25\" fill=\"none\" stroke=\"#059669\""));
  // Right answers in percent, 0 to 100.
  EXPECT_THAT(svg,
              HasSubstr("<polyline points=\"80.00,643.50 690.00,516.00\" fill=\"none\" stroke=\"#dc2626\""));
}

TEST(SweepChart, Golden) {
  const std::vector<ScaleRow> rows{{.scale = 0, .words = 5, .projection = 1},
                                   {.scale = 1, .words = 10, .projection = -1}};
  EXPECT_EQ(sweep_chart(rows, "t"), R"svg(<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="720" height="508" viewBox="0 0 720 508" font-family="system-ui, sans-serif">
  <rect width="720" height="508" fill="#ffffff"/>
  <text x="360.00" y="26.00" text-anchor="middle" font-size="18" fill="#334155">t</text>
  <text x="80.00" y="50.00" text-anchor="start" font-size="13" fill="#334155">words of an answer</text>
  <text x="70.00" y="234.00" text-anchor="end" font-size="12" fill="#334155">0</text>
  <text x="70.00" y="64.00" text-anchor="end" font-size="12" fill="#334155">10</text>
  <line x1="80" y1="230.00" x2="690" y2="230.00" stroke="#e2e8f0" stroke-width="1"/>
  <line x1="80" y1="230.00" x2="690" y2="230.00" stroke="#e2e8f0" stroke-width="1"/>
  <line x1="80" y1="60.00" x2="690" y2="60.00" stroke="#e2e8f0" stroke-width="1"/>
  <circle cx="80.00" cy="145.00" r="3.5" fill="#2563eb"/>
  <text x="80.00" y="248.00" text-anchor="middle" font-size="11" fill="#334155">0</text>
  <circle cx="690.00" cy="60.00" r="3.5" fill="#2563eb"/>
  <text x="690.00" y="248.00" text-anchor="middle" font-size="11" fill="#334155">1</text>
  <polyline points="80.00,145.00 690.00,60.00" fill="none" stroke="#2563eb" stroke-width="2.5"/>
  <text x="80.00" y="278.00" text-anchor="start" font-size="13" fill="#334155">projection after steering, at the end of the prompt</text>
  <text x="70.00" y="462.00" text-anchor="end" font-size="12" fill="#334155">-1</text>
  <text x="70.00" y="292.00" text-anchor="end" font-size="12" fill="#334155">1</text>
  <line x1="80" y1="458.00" x2="690" y2="458.00" stroke="#e2e8f0" stroke-width="1"/>
  <line x1="80" y1="373.00" x2="690" y2="373.00" stroke="#e2e8f0" stroke-width="1"/>
  <line x1="80" y1="288.00" x2="690" y2="288.00" stroke="#e2e8f0" stroke-width="1"/>
  <circle cx="80.00" cy="288.00" r="3.5" fill="#059669"/>
  <text x="80.00" y="476.00" text-anchor="middle" font-size="11" fill="#334155">0</text>
  <circle cx="690.00" cy="458.00" r="3.5" fill="#059669"/>
  <text x="690.00" y="476.00" text-anchor="middle" font-size="11" fill="#334155">1</text>
  <polyline points="80.00,288.00 690.00,458.00" fill="none" stroke="#059669" stroke-width="2.5"/>
  <text x="385.00" y="500.00" text-anchor="middle" font-size="13" fill="#334155">scale</text>
</svg>
)svg");
}

TEST(SweepChart, OneScaleAndNothingButZero) {
  const std::string svg = sweep_chart({{.scale = 3}}, "t");
  EXPECT_THAT(svg, HasSubstr("<polyline points=\"80.00,230.00\""));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_EQ(svg.find("percent"), std::string::npos);
}

}  // namespace
}  // namespace ds4::steer
