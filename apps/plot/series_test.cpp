#include "series.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::plot {
namespace {

using testing::ElementsAre;

std::string error_of(std::string_view csv) {
  const auto points = read_points(csv, "x.csv");
  return points ? "" : points.error().message;
}

TEST(ReadPoints, FindsTheColumnsAndSorts) {
  const auto points = read_points(
      "\xef\xbb\xbf# machine: one\r\n"
      "gen_tps,other, ctx_tokens ,prefill_tps\r\n"
      "22.5,x,4096,300\r\n"
      "\r\n"
      "23.5,,2048,410.62\r\n",
      "x.csv");
  ASSERT_TRUE(points) << points.error().message;
  ASSERT_EQ(points->size(), 2u);
  EXPECT_EQ((*points)[0].ctx_tokens, 2048);
  EXPECT_EQ((*points)[0].prefill_tps, 410.62);
  EXPECT_EQ((*points)[0].gen_tps, 23.5);
  EXPECT_EQ((*points)[1].ctx_tokens, 4096);
}

TEST(ReadPoints, SaysWhatIsWrong) {
  EXPECT_EQ(error_of("ctx_tokens,a\n1,2\n"), "x.csv lacks the columns prefill_tps, gen_tps");
  EXPECT_EQ(error_of(""), "x.csv lacks the columns ctx_tokens, prefill_tps, gen_tps");
  EXPECT_EQ(error_of("ctx_tokens,prefill_tps,gen_tps\n"), "x.csv has 0 rows; a line needs two at least");
  EXPECT_EQ(error_of("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n"),
            "x.csv has 1 row; a line needs two at least");
  EXPECT_EQ(error_of("ctx_tokens,prefill_tps,gen_tps\n0,2,3\n0,2,3"), "x.csv: every context is 0");
  for (const char* bad : {"x", "", "-1", "nan", "inf", "1e999", "1;2"}) {
    EXPECT_EQ(error_of(std::string("ctx_tokens,prefill_tps,gen_tps\n1,2,3\n1,2,") + bad + "\n"),
              "x.csv:3: gen_tps is not a number")
        << bad;
  }
  EXPECT_EQ(error_of("ctx_tokens,prefill_tps,gen_tps\n1,2\n"), "x.csv:2: gen_tps is not a number");
}

TEST(DefaultTitle, ReadsTheNameOfTheFile) {
  EXPECT_EQ(default_title("m3_max"), "M3 Max t/s");
  EXPECT_EQ(default_title("dgx-spark__gb10"), "Dgx Spark Gb10 t/s");
  EXPECT_EQ(default_title("2core"), "2core t/s");
  EXPECT_EQ(default_title(""), "t/s");
}

TEST(LabelsOf, NamesTheFolderWhereItIsNeeded) {
  EXPECT_THAT(labels_of({"a/m3.csv", "b/m4.csv"}), ElementsAre("m3", "m4"));
  EXPECT_THAT(labels_of({"h200/flash.csv", "bench/cpu/flash.csv", "m4.csv"}),
              ElementsAre("h200/flash", "cpu/flash", "m4"));
}

}  // namespace
}  // namespace ds4::plot
