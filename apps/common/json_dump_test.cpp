#include "common/json_dump.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace ds4::cli {
namespace {

TEST(JsonString, EscapesWhatJsonNeeds) {
  EXPECT_EQ(json_string("Ada"), R"("Ada")");
  EXPECT_EQ(json_string("a\"b\\c\n\r\t"), R"("a\"b\\c\n\r\t")");
  EXPECT_EQ(json_string(std::string_view("\0\x1f\x7f", 3)), "\"\\u0000\\u001f\x7f\"");
}

TEST(JsonString, ValidUtf8StaysAndInvalidIsSpelled) {
  EXPECT_EQ(json_string("\u00e8\U0001F600"), "\"\u00e8\U0001F600\"");
  EXPECT_EQ(json_string("\xc3"), R"("\u00c3")");
  EXPECT_EQ(json_string("\u00e8\xff"), R"("\u00c3\u00a8\u00ff")");
  EXPECT_EQ(json_string("\xed\xa0\x80"), R"("\u00ed\u00a0\u0080")");  // a surrogate
}

TEST(JsonToken, HoldsTheExactBytes) {
  EXPECT_EQ(json_token(108149, "Ada"), R"({"id":108149,"text":"Ada","bytes":[65,100,97]})");
  EXPECT_EQ(json_token(7, "\xf0\x9f"), R"({"id":7,"text":"\u00f0\u009f","bytes":[240,159]})");
  EXPECT_EQ(json_token(7, ""), R"({"id":7,"text":"","bytes":[]})");
}

TEST(JsonNumber, NineDigitsOrNull) {
  EXPECT_EQ(json_number(31.2345676f), "31.2345676");
  EXPECT_EQ(json_number(-0.00012f), "-0.000119999997");
  EXPECT_EQ(json_number(3), "3");
  EXPECT_EQ(json_number(1e20f), "1.00000002e+20");
  EXPECT_EQ(json_number(std::numeric_limits<float>::quiet_NaN()), "null");
  EXPECT_EQ(json_number(-std::numeric_limits<float>::infinity()), "null");
}

}  // namespace
}  // namespace ds4::cli
