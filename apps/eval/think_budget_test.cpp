#include "think_budget.hpp"

#include <gtest/gtest.h>

namespace ds4::eval {
namespace {

constexpr Token close_token = 77;
constexpr ReplyBudget budget{.soft_tokens = 100, .hard_tokens = 50, .close_rank = 3};

ThinkWatch::RankOfClose rank(uint64_t value) {
  return [value](uint64_t limit) -> Result<uint64_t> { return value <= limit ? value : 0; };
}
ThinkWatch::RankOfClose never_asked() {
  return [](uint64_t) -> Result<uint64_t> {
    ADD_FAILURE() << "asked for the rank";
    return uint64_t{0};
  };
}

TEST(ThinkWatch, LeavesTheModelAloneWithRoom) {
  ThinkWatch watch(budget, close_token, true);
  EXPECT_FALSE(*watch.forced(101, never_asked()));
  EXPECT_EQ(watch.close().kind, CloseKind::none);
}

TEST(ThinkWatch, ForcesAtTheHardLimit) {
  ThinkWatch watch(budget, close_token, true);
  EXPECT_EQ(**watch.forced(50, never_asked()), close_token);
  watch.generated(951, 50, "</think>");
  EXPECT_FALSE(watch.thinking());
  EXPECT_EQ(watch.close().kind, CloseKind::hard_forced);
  EXPECT_EQ(watch.close().token_index, 951u);
  EXPECT_EQ(watch.close().remaining_tokens, 50u);
  EXPECT_FALSE(*watch.forced(49, never_asked()));
}

TEST(ThinkWatch, ForcesSoftlyWhereTheTagIsLikely) {
  ThinkWatch watch(budget, close_token, true);
  EXPECT_FALSE(*watch.forced(100, rank(4)));
  EXPECT_EQ(**watch.forced(99, rank(3)), close_token);
  watch.generated(902, 99, "</think>");
  EXPECT_EQ(watch.close().kind, CloseKind::soft_forced);
  EXPECT_EQ(watch.close().rank, 3u);
}

TEST(ThinkWatch, SeesANaturalEndSplitOverTokens) {
  ThinkWatch watch(budget, close_token, true);
  watch.generated(1, 1000, "so <");
  watch.generated(2, 999, "/thi");
  EXPECT_TRUE(watch.thinking());
  watch.generated(3, 998, "nk> yes");
  EXPECT_FALSE(watch.thinking());
  EXPECT_EQ(watch.close().kind, CloseKind::natural);
  EXPECT_EQ(watch.close().token_index, 3u);
}

TEST(ThinkWatch, TellsHowFarTheModelIsFree) {
  ThinkWatch watch(budget, close_token, true);
  EXPECT_EQ(watch.free_tokens(1000), 900u);
  EXPECT_EQ(watch.free_tokens(101), 1u);
  EXPECT_EQ(watch.free_tokens(100), 1u);
  watch.generated(1, 100, "</think>");
  EXPECT_EQ(watch.free_tokens(99), 99u);
}

TEST(ThinkWatch, PassesOnErrors) {
  ThinkWatch watch(budget, close_token, true);
  const auto result =
      watch.forced(80, [](uint64_t) -> Result<uint64_t> { return Error{ErrorCode::not_finite, "NaN"}; });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::not_finite);
}

TEST(ThinkWatch, DoesNothingWithoutReasoning) {
  ThinkWatch watch(budget, close_token, false);
  EXPECT_FALSE(*watch.forced(1, never_asked()));
  watch.generated(1, 1, "</think>");
  EXPECT_EQ(watch.close().kind, CloseKind::none);
}

}  // namespace
}  // namespace ds4::eval
