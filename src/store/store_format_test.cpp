#include "store/store_format.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "store/chain.hpp"

namespace ds4::store {
namespace {

SegmentHeader a_segment() {
  SegmentHeader header;
  header.fingerprint.bytes.fill(7);
  header.parent = Chain::start(header.fingerprint, 2);
  header.block_tokens = 2;
  header.block_bytes = 100;
  header.created = 5;
  header.tokens = {1, 2, 3, 4, 5, 6};
  header.block_hashes.resize(3);
  return header;
}

FrontierHeader a_frontier() {
  FrontierHeader header;
  header.position = 7;
  header.block_tokens = 4;
  header.payload_bytes = 1000;
  header.reason = SaveReason::turn;
  header.anchor = true;
  header.tail = {1, 2, 3};
  header.borders = {{1, 10, {}}, {7, 30, {}}};
  return header;
}

TEST(StoreFormat, HeadersAreReadAsTheyWereWritten) {
  const SegmentHeader segment = a_segment();
  const auto segment_bytes = encode(segment);
  ASSERT_EQ(segment_bytes.size(), segment.header_bytes());
  EXPECT_EQ(*parse_preamble(FileKind::segment, segment_bytes, segment.file_bytes()), segment_bytes.size());
  const auto segment_read = parse_segment(segment_bytes, segment.file_bytes());
  ASSERT_TRUE(segment_read) << segment_read.error().message;
  EXPECT_EQ(segment_read->tokens, segment.tokens);
  EXPECT_EQ(segment_read->name(), segment.name());

  const FrontierHeader frontier = a_frontier();
  const auto frontier_bytes = encode(frontier);
  ASSERT_EQ(frontier_bytes.size(), frontier.header_bytes());
  const auto frontier_read = parse_frontier(frontier_bytes, frontier.file_bytes());
  ASSERT_TRUE(frontier_read) << frontier_read.error().message;
  EXPECT_EQ(frontier_read->borders, frontier.borders);
  EXPECT_EQ(frontier_read->tail, frontier.tail);
  EXPECT_EQ(frontier_read->reason, SaveReason::turn);
  EXPECT_TRUE(frontier_read->anchor);

  ReplyHeader reply;
  reply.keys.resize(2);
  reply.payload_bytes = 9;
  const auto reply_read = parse_reply(encode(reply), reply.file_bytes());
  ASSERT_TRUE(reply_read);
  EXPECT_EQ(reply_read->keys.size(), 2u);
}

// The bytes that docs/formats.md §12 tells.
TEST(StoreFormat, FieldsAreWhereTheFormatSays) {
  const auto bytes = encode(a_segment());
  const auto u32_at = [&](size_t at) {
    uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at, 4);
    return value;
  };
  EXPECT_EQ(std::memcmp(bytes.data(), "DS4KVSEG", 8), 0);
  EXPECT_EQ(u32_at(8), 1u);
  EXPECT_EQ(u32_at(12), bytes.size());
  EXPECT_EQ(bytes.size(), 80u + 6 * 4 + 3 * 16 + 16);
  EXPECT_EQ(u32_at(16), 0x07070707u);
  EXPECT_EQ(u32_at(56), 3u);
  EXPECT_EQ(u32_at(60), 2u);
  EXPECT_EQ(u32_at(64), 100u);
  EXPECT_EQ(u32_at(80), 1u);
  const auto frontier = encode(a_frontier());
  EXPECT_EQ(frontier.size(), 96u + 3 * 4 + 2 * 32 + 16 + 16);
}

TEST(StoreFormat, NamesFollowFromTheContent) {
  Chain chain(a_segment().fingerprint, 2);
  chain.append(std::vector<Token>{1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(a_segment().chain().back(), chain.hash(3));
  SegmentHeader other = a_segment();
  other.tokens.back() = 9;
  EXPECT_NE(other.name(), a_segment().name());
  FrontierHeader frontier;
  frontier.base = chain.hash(3);
  frontier.tail = {7};
  frontier.position = 7;
  EXPECT_EQ(frontier.name(), chain.key());
}

TEST(StoreFormat, CountsOutOfRangeAreRefused) {
  const auto refused = [](SegmentHeader header) {
    return !parse_segment(encode(header), header.file_bytes()).has_value();
  };
  SegmentHeader header = a_segment();
  header.first_block = 6;  // would reach into the next range
  EXPECT_TRUE(refused(header));
  header.first_block = 5;
  EXPECT_FALSE(refused(header));
  header.first_block = UINT64_MAX / most_block_tokens;
  EXPECT_TRUE(refused(header));
  header = a_segment();
  header.tokens[2] = -1;
  EXPECT_TRUE(refused(header));
  header = a_segment();
  EXPECT_FALSE(parse_segment(encode(header), header.file_bytes() + 1));
  header.block_bytes = UINT64_MAX / 2;
  EXPECT_TRUE(refused(header));
  FrontierHeader frontier = a_frontier();
  frontier.borders[0].tokens = 8;
  EXPECT_FALSE(parse_frontier(encode(frontier), frontier.file_bytes()));
  frontier = a_frontier();
  frontier.position = 8;
  EXPECT_FALSE(parse_frontier(encode(frontier), frontier.file_bytes()));
  EXPECT_FALSE(parse_frontier(encode(a_segment()), a_segment().file_bytes()));
}

}  // namespace
}  // namespace ds4::store
