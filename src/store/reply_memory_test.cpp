#include "store/reply_memory.hpp"

#include <gtest/gtest.h>

namespace ds4::store {
namespace {

std::shared_ptr<const SampledReply> reply(std::string text) {
  return std::make_shared<const SampledReply>(SampledReply{.content = {{std::move(text), false}}});
}

TEST(ReplyMemory, RemembersAndReplaces) {
  ReplyMemory memory;
  EXPECT_EQ(memory.get("call_1"), nullptr);
  memory.put("call_1", reply("one"));
  memory.put("call_2", reply("two"));
  EXPECT_EQ(memory.get("call_1")->content[0].text, "one");
  const size_t bytes = memory.bytes();
  memory.put("call_1", reply("new"));
  EXPECT_EQ(memory.get("call_1")->content[0].text, "new");
  EXPECT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory.bytes(), bytes);
}

TEST(ReplyMemory, ForgetsTheLeastRecentlyUsed) {
  ReplyMemory memory({.keys = 2});
  memory.put("a", reply("a"));
  memory.put("b", reply("b"));
  EXPECT_NE(memory.get("a"), nullptr);
  memory.put("c", reply("c"));
  EXPECT_TRUE(memory.contains("a"));
  EXPECT_FALSE(memory.contains("b"));
}

TEST(ReplyMemory, KeepsToItsBytes) {
  ReplyMemory memory({.bytes = 10000});
  for (int i = 0; i < 100; ++i) {
    memory.put(std::to_string(i), reply(std::string(1000, 'x')));
    EXPECT_LE(memory.bytes(), 10000u);
  }
  EXPECT_GT(memory.size(), 4u);
  EXPECT_TRUE(memory.contains("99"));
  memory.put("large", reply(std::string(20000, 'x')));
  EXPECT_EQ(memory.size(), 0u);
  EXPECT_EQ(memory.bytes(), 0u);
}

TEST(ReplyMemory, CanBeSwitchedOff) {
  ReplyMemory memory({.keys = 0});
  memory.put("a", reply("a"));
  EXPECT_EQ(memory.get("a"), nullptr);
}

}  // namespace
}  // namespace ds4::store
