#include "text/json_stream.hpp"

#include <gtest/gtest.h>

#include <random>

#include "text/json_text.hpp"

namespace ds4::text {
namespace {

/// The minified value, or "invalid".
std::string streamed(std::string_view text) {
  JsonStream stream;
  std::string minified;
  for (const char c : text) {
    if (!stream.feed(c, minified)) return "invalid";
  }
  return stream.complete() ? minified : "invalid";
}

std::string at_once(std::string_view text) {
  const auto end = json_value_end(text, 0);
  if (!end || skip_white_space(text, *end) != text.size()) return "invalid";
  return json_minify(text.substr(0, *end));
}

TEST(JsonStream, Values) {
  for (const std::string_view valid :
       {"0", "-0", "10", "1.50", "1e5", "-1.0E-07", "2E+5", "true", "false", "null", "\"\"",
        "\"a\\n\\u00e9\\\\\"", "[]", "{}", "[[],{}]", "[1,[2,\"x y\"],{\"a\":[]}]", "{\"\":\"\",\"b\":0}"}) {
    EXPECT_EQ(streamed(valid), valid);
    EXPECT_EQ(streamed(std::string("\r\n\t ") + std::string(valid) + " \n"), valid);
  }
  EXPECT_EQ(streamed(" { \"a b\" : [ 1 , 2 ] , \"c\" : null } "), "{\"a b\":[1,2],\"c\":null}");
  for (const std::string_view invalid : {"",           " ",          "01",
                                         "-",          "+1",         ".5",
                                         "1.",         "1.e5",       "1e",
                                         "1e+",        "1.5.5",      "1e5e5",
                                         "0x1",        "tru",        "truee",
                                         "nul1",       "True",       "'a'",
                                         "\"",         "\"\\x\"",    "\"\\u12g4\"",
                                         "\"\\u123\"", "\"\n\"",     "[",
                                         "]",          "[1",         "[1,]",
                                         "[,1]",       "[1 2]",      "[1}",
                                         "{",          "{]",         "{\"a\"}",
                                         "{\"a\":}",   "{\"a\":1,}", "{a:1}",
                                         "{1:2}",      "{\"a\" 1}",  "{\"a\":1 \"b\":2}",
                                         "1 2",        "[] []",      "\"a\"\"b\"",
                                         "1,",         "{\"a\":1]"}) {
    EXPECT_EQ(streamed(invalid), "invalid") << invalid;
  }
}

TEST(JsonStream, AgreesWithTheReaderOfWholeValues) {
  const std::vector<std::string> pieces = {
      "{", "}",    "[",    "]",    ",", ":", "\"", "\"a\"", "\"k\":", "1",     "0",  "-",  ".",   "e",
      "+", "true", "null", "fals", "e", " ", "\n", "\\",    "\\\"",   "\\u00", "e9", "世", "\x01"};
  std::mt19937 random(3);
  size_t valid = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string text;
    for (size_t count = random() % 8; count > 0; --count) text += pieces[random() % pieces.size()];
    const std::string expected = at_once(text);
    ASSERT_EQ(streamed(text), expected) << text;
    if (expected != "invalid") ++valid;
  }
  EXPECT_GT(valid, 1000u);
}

TEST(JsonStream, KnowsWhereItIs) {
  JsonStream stream;
  std::string minified;
  EXPECT_TRUE(stream.empty());
  stream.feed(' ', minified);
  EXPECT_TRUE(stream.empty());
  for (const char c : std::string_view("[\"a\\")) stream.feed(c, minified);
  EXPECT_TRUE(stream.in_string());
  EXPECT_FALSE(stream.empty());
  for (const char c : std::string_view("\"\",")) stream.feed(c, minified);
  EXPECT_FALSE(stream.in_string());
  EXPECT_FALSE(stream.empty());
  EXPECT_FALSE(stream.complete());
}

}  // namespace
}  // namespace ds4::text
