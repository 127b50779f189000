#include "generate.hpp"

#include <gtest/gtest.h>

#include "common/model_run.hpp"

namespace ds4::cli {
namespace {

TEST(GenerationRoom, LeavesOnePlace) {
  EXPECT_EQ(generation_room(10, 4, 100), 5u);
  EXPECT_EQ(generation_room(10, 4, 3), 3u);
  EXPECT_EQ(generation_room(10, 9, 3), 0u);
  EXPECT_EQ(generation_room(10, 10, 3), 0u);
}

TEST(EndsReply, EosAndWhatBelongsToOthers) {
  const SpecialTokens special{
      .bos = 0, .eos = 1, .user = 2, .assistant = 3, .think_open = 4, .think_close = 5, .dsml = 6};
  for (const Token token : {0, 1, 2}) EXPECT_TRUE(ends_reply(special, token)) << token;
  for (const Token token : {3, 4, 5, 6, 7}) EXPECT_FALSE(ends_reply(special, token)) << token;
}

TEST(Drafts, TextTellsPlacesStepsAndSpeed) {
  SpeculationStats stats;
  stats.draft_steps = 4;
  stats.draft_tokens = 9;
  stats.drafted = {4, 3};
  stats.accepted = {3, 2};
  stats.draft_seconds = 3;
  EXPECT_EQ(drafts_text(stats), "drafts accepted by place: 3/4, 2/3; 2.25 tokens per step");
  stats.plain_steps = 2;
  stats.plain_seconds = 1;
  EXPECT_EQ(
      drafts_text(stats),
      "drafts accepted by place: 3/4, 2/3; 2.25 tokens per step, 1.50 times the speed of single tokens");
}

}  // namespace
}  // namespace ds4::cli
