#include "format/imatrix.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "format/container_bytes.hpp"

namespace ds4::format {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string entry(const std::string& name, int32_t calls, const std::vector<float>& values) {
  std::string out = little_endian(static_cast<int32_t>(name.size())) + name + little_endian(calls) +
                    little_endian(static_cast<int32_t>(values.size()));
  for (const float value : values) out += little_endian(value);
  return out;
}

Result<Imatrix> parse(const std::string& bytes) {
  return parse_imatrix(std::as_bytes(std::span(bytes)), "file.dat");
}

TEST(Imatrix, ReadsWhatTheFileHolds) {
  const std::string bytes = little_endian<int32_t>(2) + entry("a", 2, {2, 4, 6}) + entry("b", 0, {5}) +
                            little_endian<int32_t>(7) + little_endian<int32_t>(4) + "text";
  const auto imatrix = parse(bytes);
  ASSERT_TRUE(imatrix) << imatrix.error().message;
  EXPECT_THAT(imatrix->entries.at("a"), ElementsAre(1, 2, 3));
  EXPECT_THAT(imatrix->entries.at("b"), ElementsAre(5));
  EXPECT_EQ(imatrix->chunks, 7u);
  EXPECT_EQ(imatrix->dataset, "text");
}

TEST(Imatrix, TheLastFieldsMayBeMissing) {
  const auto none = parse(little_endian<int32_t>(1) + entry("a", 1, {1}));
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->chunks);
  EXPECT_FALSE(none->dataset);
  const auto chunks = parse(little_endian<int32_t>(1) + entry("a", 1, {1}) + little_endian<int32_t>(3));
  ASSERT_TRUE(chunks);
  EXPECT_EQ(chunks->chunks, 3u);
  EXPECT_FALSE(chunks->dataset);
}

TEST(Imatrix, RoundTrip) {
  Imatrix imatrix;
  imatrix.entries = {{"blk.0.ffn_gate_exps.weight", {1, 2, 3, 4}}, {"x", {0.5f}}};
  for (const bool chunks : {false, true}) {
    if (chunks) imatrix.chunks = 9, imatrix.dataset = "calibration.txt";
    const auto bytes = serialize_imatrix(imatrix);
    ASSERT_TRUE(bytes);
    const auto again = parse(*bytes);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->entries, imatrix.entries);
    EXPECT_EQ(again->chunks, imatrix.chunks);
    EXPECT_EQ(again->dataset, imatrix.dataset);
  }
}

// The bytes by hand from docs/formats.md §10, in the order in which the original writes entries.
TEST(Imatrix, WritesTheBytesOfTheFormat) {
  Imatrix imatrix;
  imatrix.entries = {{"blk.10.ffn_down_exps.weight", {1}}, {"blk.2.ffn_down_exps.weight", {2, 3}},
                     {"blk.2.ffn_gate_exps.weight", {4}},  {"blk.2.ffn_up_exps.weight", {0.5f}},
                     {"blk.10.ffn_up_exps.weight", {5}},   {"blk.1.attn_kv.weight", {6}}};
  imatrix.chunks = 3;
  imatrix.dataset = "c.txt";
  const auto bytes = serialize_imatrix(imatrix);
  ASSERT_TRUE(bytes);
  using namespace std::string_literals;
  const std::string one = "\x01\0\0\0"s, float_one = "\0\0\x80\x3f"s;
  EXPECT_EQ(*bytes,
            "\x06\0\0\0"s  //
            "\x1a\0\0\0blk.2.ffn_gate_exps.weight"s +
                one + one + "\0\0\x80\x40"s +                                           //
                "\x18\0\0\0blk.2.ffn_up_exps.weight"s + one + one + "\0\0\0\x3f"s +     //
                "\x1a\0\0\0blk.2.ffn_down_exps.weight"s + one + "\x02\0\0\0"s +         //
                "\0\0\0\x40\0\0\x40\x40"s +                                             //
                "\x19\0\0\0blk.10.ffn_up_exps.weight"s + one + one + "\0\0\xa0\x40"s +  //
                "\x1b\0\0\0blk.10.ffn_down_exps.weight"s + one + one + float_one +      //
                "\x14\0\0\0blk.1.attn_kv.weight"s + one + one + "\0\0\xc0\x40"s +       //
                "\x03\0\0\0\x05\0\0\0c.txt"s);
}

TEST(Imatrix, FindsExpertsByNameOrSlice) {
  Imatrix imatrix;
  imatrix.entries = {
      {"t", {1, 2, 3, 4, 5, 6}}, {"t.expert.1", {7, 8}}, {"t.expert_2", {9, 10}}, {"u", {1, 2}}};
  EXPECT_THAT(*imatrix.find("t", 2, 0, 3), ElementsAre(1, 2));
  EXPECT_THAT(*imatrix.find("t", 2, 1, 3), ElementsAre(7, 8));
  EXPECT_THAT(*imatrix.find("t", 2, 2, 3), ElementsAre(9, 10));
  EXPECT_THAT(*imatrix.find("t", 6, 0, 1), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(*imatrix.find("u", 2, 1, 3), ElementsAre(1, 2));
  EXPECT_THAT(*imatrix.find("v", 2, 0, 1), IsEmpty());
  const auto wrong = imatrix.find("t", 4, 0, 3);
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message, HasSubstr("\"t\" has 6 values for 4 columns and 3 experts"));
}

TEST(Imatrix, EveryCutIsAnErrorOrAWholeNumberOfFields) {
  const std::string entries = little_endian<int32_t>(2) + entry("a", 2, {2, 4, 6}) + entry("b", 0, {5});
  const std::string bytes = entries + little_endian<int32_t>(7) + little_endian<int32_t>(4) + "text";
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto result = parse(bytes.substr(0, length));
    EXPECT_EQ(result.has_value(), length == entries.size() || length == entries.size() + 4) << length;
    if (result) continue;
    EXPECT_THAT(result.error().message, HasSubstr("file.dat: the file ends in")) << length;
  }
}

TEST(Imatrix, DamagedFilesAreNamed) {
  const auto count = [](int32_t n) { return little_endian(n); };
  const std::pair<std::string, const char*> cases[] = {
      {count(-1), "number of entries is -1"},
      {count(1) + count(0), "length of a name is 0"},
      {count(1) + count(5000), "length of a name is 5000"},
      {count(1) + count(1) + "a" + count(1) + count(0), "number of values is 0"},
      {count(1) + count(1) + "a" + count(1) + count(0x7fffffff) + "xxxx", "ends in values"},
      {count(1) + entry("a", 1, {std::nanf("")}), "value 0 of \"a\" is nan"},
      {count(1) + entry("a", 1, {1, -1}), "value 1 of \"a\" is -1"},
      {count(1) + entry("a", 1, {INFINITY}), "value 0 of \"a\" is inf"},
      {count(2) + entry("a", 1, {1}) + entry("a", 1, {1}), "two entries \"a\""},
      {count(0) + count(1) + count(1 << 21), "length of the data set's name"},
      {count(0) + count(1) + count(1) + "ab", "1 bytes follow"},
      {count(0x7fffffff), "ends in the length of a name"},
  };
  for (const auto& [bytes, message] : cases) {
    const auto result = parse(bytes);
    ASSERT_FALSE(result) << message;
    EXPECT_EQ(result.error().code, ErrorCode::format);
    EXPECT_THAT(result.error().message, HasSubstr(message));
  }
}

}  // namespace
}  // namespace ds4::format
