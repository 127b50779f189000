#include "generate.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ds4::cli
