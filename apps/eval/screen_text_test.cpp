#include "screen_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::eval {
namespace {

using testing::ElementsAre;

TEST(ScreenText, LeftPaneIsHalfTheScreenWithinBounds) {
  EXPECT_EQ(left_pane_columns(90), 45);
  EXPECT_EQ(left_pane_columns(80), 42);
  EXPECT_EQ(left_pane_columns(300), 72);
}

TEST(ScreenText, FitsByColumns) {
  EXPECT_EQ(fit("abcdef", 6), "abcdef");
  EXPECT_EQ(fit("abcdefg", 6), "abc...");
  EXPECT_EQ(fit("日本語日本語", 8), "日本...");
  EXPECT_EQ(columns_of(fit("日本語日本語", 8)), 7u);
  EXPECT_EQ(fit("abcdef", 2), "..");
  EXPECT_EQ(fit("a\x1b[2Jb", 10), "a^[[2Jb");
  EXPECT_EQ(pad("日本", 6), "日本  ");
}

TEST(ScreenText, PreviewCollapsesAndCuts) {
  EXPECT_THAT(preview("one\n  two", 20, 3), ElementsAre("one two"));
  EXPECT_THAT(preview("abcdefghijkl", 4, 3), ElementsAre("abcd", "efgh", "ijkl"));
  EXPECT_THAT(preview("abcdefghijklm", 4, 3), ElementsAre("abcd", "efgh", "i..."));
  EXPECT_THAT(preview("", 4, 3), ElementsAre());
}

TEST(ScreenText, CountsAreShort) {
  EXPECT_EQ(short_count(9999), "9999");
  EXPECT_EQ(short_count(12345), "12k");
  EXPECT_EQ(short_count(3999999), "3m");
}

std::vector<std::string> texts(const std::vector<OutputLine>& lines) {
  std::vector<std::string> result;
  for (const OutputLine& line : lines) result.push_back((line.reasoning ? "~" : "") + line.text);
  return result;
}

TEST(ScreenText, OutputIsWrappedAndItsTailShown) {
  EXPECT_THAT(texts(output_tail("abcdefg\nxy", false, 4, 9)), ElementsAre("abcd", "efg", "xy"));
  EXPECT_THAT(texts(output_tail("abcdefg\nxy", false, 4, 2)), ElementsAre("efg", "xy"));
  EXPECT_THAT(texts(output_tail("so</think>yes", true, 9, 9)), ElementsAre("~so", "yes"));
  EXPECT_THAT(texts(output_tail("<think>so", true, 9, 9)), ElementsAre("~so"));
  EXPECT_THAT(texts(output_tail("a\tb\x07", false, 9, 9)), ElementsAre("a b^G"));
  EXPECT_THAT(texts(output_tail("</think>yes", true, 9, 9)), ElementsAre("yes"));
  EXPECT_THAT(texts(output_tail("", true, 9, 9)), ElementsAre());
}

TEST(ScreenText, LongOutputIsStillRight) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "é";
  const auto lines = output_tail(text, false, 10, 3);
  ASSERT_EQ(lines.size(), 3u);
  for (const OutputLine& line : lines) EXPECT_EQ(columns_of(line.text), 10u);
}

TEST(ScreenText, CaseLines) {
  CaseState c{.item = {.source = "S", .title = "a title", .answer = "C"}};
  EXPECT_EQ(case_line(c, 7, true, 30), "> 7 PEND S: a title           ");
  c.status = Status::failed;
  c.picked = "A";
  EXPECT_EQ(case_line(c, 12, false, 42), " 12 FAIL S: a title                    A/C");
  c.picked = "a very long answer that was given";
  EXPECT_EQ(columns_of(case_line(c, 1, false, 42)), 42u);
}

TEST(ScreenText, ProgressLine) {
  RunState state;
  state.cases.push_back({.item = {.source = "S", .id = "an-id-that-is-long"}});
  CaseState& c = state.cases[0];
  c.status = Status::prefill;
  state.prefill_done = 50;
  state.prefill_total = 200;
  EXPECT_EQ(progress_line(state), "Speed 0.00 t/s  FILL 50/200 25%  S/an-id-tha...");
  c.status = Status::running;
  c.limit_tokens = 16000;
  c.generated_tokens = 30;
  state.hard_limit_tokens = 512;
  state.thinking = true;
  EXPECT_THAT(progress_line(state), testing::HasSubstr("THINK 30/15k"));
  state.thinking = false;
  EXPECT_THAT(progress_line(state), testing::HasSubstr("ANS 30/16k"));
  c.status = Status::passed;
  EXPECT_THAT(progress_line(state), testing::HasSubstr("PASS 30/16k"));
}

TEST(ScreenText, ListFollowsTheSelection) {
  EXPECT_EQ(list_begin(5, 8, 10), 0u);
  EXPECT_EQ(list_begin(0, 100, 10), 0u);
  EXPECT_EQ(list_begin(50, 100, 10), 45u);
  EXPECT_EQ(list_begin(99, 100, 10), 90u);
}

}  // namespace
}  // namespace ds4::eval
