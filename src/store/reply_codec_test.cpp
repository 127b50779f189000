#include "store/reply_codec.hpp"

#include <gtest/gtest.h>

#include <string>

namespace ds4::store {
namespace {

SampledReply sample() {
  SampledReply reply;
  reply.reasoning = {{"first ", false}, {"<special>", true}, {std::string("\0 after", 7), false}};
  reply.content = {};
  reply.tool_block = {{"", true}, {"calls", false}};
  return reply;
}

TEST(ReplyCodec, GivesBackWhatWasWritten) {
  const SampledReply reply = sample();
  const auto bytes = serialize_sampled_reply(reply);
  const auto read = parse_sampled_reply(bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->reasoning, reply.reasoning);
  EXPECT_EQ(read->content, reply.content);
  EXPECT_EQ(read->tool_block, reply.tool_block);
  EXPECT_TRUE(parse_sampled_reply(serialize_sampled_reply({})));
}

TEST(ReplyCodec, RefusesWhatIsCutOrLonger) {
  auto bytes = serialize_sampled_reply(sample());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(parse_sampled_reply(std::span(bytes).first(length))) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(parse_sampled_reply(bytes));
}

TEST(ReplyCodec, LengthsAreCheckedBeforeMemoryIsTaken) {
  const auto bytes = serialize_sampled_reply(sample());
  for (size_t at = 0; at + 4 <= bytes.size(); ++at) {
    auto changed = bytes;
    for (size_t i = 0; i < 4; ++i) changed[at + i] = std::byte{0xff};
    const auto read = parse_sampled_reply(changed);
    EXPECT_LE(read ? serialize_sampled_reply(*read).size() : 0, bytes.size());
  }
}

}  // namespace
}  // namespace ds4::store
