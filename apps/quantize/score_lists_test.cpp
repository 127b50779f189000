#include "score_lists.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::quantize {
namespace {

using ::testing::HasSubstr;

std::vector<ListedScore> parsed(std::string_view text) {
  auto scores = parse_score_list(text, "list.tsv");
  EXPECT_TRUE(scores) << scores.error().message;
  return scores ? *scores : std::vector<ListedScore>();
}

TEST(ScoreLists, WhatIsWrittenIsRead) {
  ItemScore text, first, second;
  text.id = "text";
  first.id = "one";
  second.id = "two";
  first.kind = second.kind = ItemKind::continuation;
  first.given = 7;
  first.tokens = second.tokens = 4;
  first.nll = 1.5;
  first.first_matches = 1;
  first.greedy_prefix = 3;
  const std::string list = score_list({text, first, second});
  EXPECT_THAT(list, HasSubstr("\none\t7\t4\t1.500000000\t0.375000000\t1\t3\n"));
  const auto scores = parsed(list);
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0].id, "one");
  EXPECT_EQ(scores[0].tokens, 4u);
  EXPECT_EQ(scores[0].nll, 1.5);
  EXPECT_TRUE(scores[0].first_match);
  EXPECT_EQ(scores[0].greedy_prefix, 3u);
}

TEST(ScoreLists, ComparesWhatBothHave) {
  const auto before =
      parsed("a\t1\t2\t2.0\t1\t1\t2\nb\t1\t2\t1.0\t0.5\t0\t0\nc\t1\t4\t1\t0\t1\t1\nold\t1\t2\t9\t4\t1\t1\n");
  const auto after = parsed(
      "c\t1\t4\t1\t0\t1\t1\na\t1\t2\t1.0\t1\t1\t1\r\nb\t1\t2\t1.2\t0.5\t1\t2\nnew\t1\t2\t9\t4\t1\t1\n");
  const auto text = compare_score_lists(before, after);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(
      *text,
      "cases\t3\ntokens\t8\nold_avg_nll\t0.500000000\nnew_avg_nll\t0.400000000\n"
      "delta_new_minus_old\t-0.100000000\nrelative_nll_change\t-20.000%\ncase_wins_new_old_ties\t1\t1\t1\n"
      "first_token_matches_old_new\t2\t3\navg_greedy_lcp_old_new\t1.000\t1.333\n"
      "best_for_new\tdelta_nll\ttokens\told_avg_nll\tnew_avg_nll\na\t-1.000000\t2\t1.000000\t0.500000\n"
      "best_for_old\tdelta_nll\ttokens\told_avg_nll\tnew_avg_nll\nb\t+0.200000\t2\t0.500000\t0.600000\n");
}

TEST(ScoreLists, MistakesAreSaid) {
  for (const char* bad : {"a\t1\t2\t1", "a\t1\t0\t1\t1\t1\t1", "a\t1\t2\tnan\t1\t1\t1", "a\t1\t2\t1\t1\t2\t1",
                          "\t1\t2\t1\t1\t1\t1", "a\t1\tx\t1\t1\t1\t1"})
    EXPECT_THAT(parse_score_list(bad, "list.tsv").error().message, HasSubstr("list.tsv:1: this is no line"))
        << bad;
  EXPECT_THAT(parse_score_list("a\t1\t2\t2\t1\t1\t2\n\na\t1\t2\t9\t1\t1\t2", "list.tsv").error().message,
              HasSubstr("list.tsv:3: there is another line of \"a\""));
  EXPECT_THAT(parse_score_list("id\tx\n", "list.tsv").error().message, HasSubstr("there are no scores"));
  const auto a = parsed("a\t1\t2\t2.0\t1\t1\t2"), b = parsed("a\t1\t3\t2.0\t1\t1\t2"),
             c = parsed("c\t1\t3\t2\t1\t1\t2");
  EXPECT_THAT(compare_score_lists(a, b).error().message, HasSubstr("\"a\" has 2 tokens in one list and 3"));
  EXPECT_THAT(compare_score_lists(a, c).error().message, HasSubstr("no id in common"));
}

}  // namespace
}  // namespace ds4::quantize
