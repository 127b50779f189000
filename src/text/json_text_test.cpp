#include "text/json_text.hpp"

#include <gtest/gtest.h>

#include <random>

#include <boost/json.hpp>

namespace ds4::text {
namespace {

TEST(JsonText, FindsTheEndOfAValue) {
  const std::vector<std::pair<std::string, std::optional<size_t>>> cases = {
      {"1", 1},           {"-0.5e+3x", 7},  {"1.", 1},
      {"1e", 1},          {"01", 1},        {"-", {}},
      {"  true ", 6},     {"tru", {}},      {"null", 4},
      {"\"a\\\"b\"c", 6}, {"\"\\u12", {}},  {"\"\\x\"", {}},
      {"\"a\nb\"", {}},   {"[]", 2},        {"[1, 2 ]]", 7},
      {"[1,]", {}},       {"[1 2]", {}},    {"[,1]", {}},
      {"{}", 2},          {"{\"a\":1}", 7}, {"{\"a\" : {} , \"b\":[[]]} tail", 21},
      {"{\"a\"}", {}},    {"{a:1}", {}},    {"{\"a\":1,}", {}},
      {"{", {}},          {"", {}},         {"   ", {}},
      {"[1}", {}},        {"\"", {}}};
  for (const auto& [text, end] : cases) EXPECT_EQ(json_value_end(text, 0), end) << text;
}

TEST(JsonText, DeepNestingIsNoProblem) {
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  EXPECT_EQ(json_value_end(deep, 0), deep.size());
  EXPECT_EQ(json_value_end(std::string(1000000, '['), 0), std::nullopt);
}

TEST(JsonText, MembersKeepOrderDigitsAndRepetition) {
  const auto members = json_object_members(" {\"b\" : 1.50, \"a\\n\":\"x\" ,\"b\":[ 1 ]} ");
  ASSERT_TRUE(members);
  ASSERT_EQ(members->size(), 3u);
  EXPECT_EQ((*members)[0].key, "b");
  EXPECT_EQ((*members)[0].value, "1.50");
  EXPECT_EQ((*members)[1].key, "a\n");
  EXPECT_EQ((*members)[1].value, "\"x\"");
  EXPECT_EQ((*members)[2].value, "[ 1 ]");
  EXPECT_TRUE(json_object_members("{}")->empty());
  for (const std::string text : {"", "[]", "{} x", "{", "just text", "\"{}\"", "{\"a\":}"}) {
    EXPECT_FALSE(json_object_members(text)) << text;
  }
}

TEST(JsonText, MinifyLeavesStringsAlone) {
  EXPECT_EQ(json_minify("{ \"a b\" : [ 1.0 ,\n\t2 ] , \"c\\\" d\" : \" \" }"),
            "{\"a b\":[1.0,2],\"c\\\" d\":\" \"}");
}

TEST(JsonText, QuoteAndUnquote) {
  EXPECT_EQ(json_quote("a\"\\\n\r\t\b\x1F/é"), "\"a\\\"\\\\\\n\\r\\t\\u0008\\u001f/é\"");
  EXPECT_EQ(json_unquote("\"\\b\\f\\n\\r\\t\\/\\\\\\\"\\u00e9\\ud83d\\ude42\""), "\b\f\n\r\t/\\\"é🙂");
  EXPECT_EQ(json_unquote("\"\\ud83d\""), "\uFFFD");
  EXPECT_EQ(json_unquote("\"\\ud83d\\u0041\\ude42\""), "\uFFFDA\uFFFD");
  EXPECT_EQ(json_unquote("\"\\u0000\""), std::string(1, '\0'));
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::string text(random() % 40, '\0');
    for (char& c : text) c = static_cast<char>(random() % 128);
    const std::string quoted = json_quote(text);
    EXPECT_EQ(json_value_end(quoted, 0), quoted.size());
    EXPECT_EQ(json_unquote(quoted), text);
  }
}

/// Boost.JSON as the judge of what is well-formed.
TEST(JsonText, AgreesWithAJsonLibraryOnMutations) {
  const std::string seed = R"({"a":[1,-2.5e3,true,null,{"b":"x\"\u00e9y","c":{}}],"d":false,"e":""})";
  constexpr std::string_view kAlphabet = "{}[]\",:\\ 0123.eE+-tfnu\n";
  std::mt19937 random(11);
  size_t valid = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string text = seed;
    for (size_t edits = random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = kAlphabet[random() % kAlphabet.size()];
      } else {
        text.erase(at, 1 + random() % 3);
      }
    }
    boost::system::error_code error;
    boost::json::parse(text, error);
    const auto end = json_value_end(text, 0);
    const bool ours = end && skip_white_space(text, *end) == text.size();
    ASSERT_EQ(ours, !error) << text;
    valid += ours;
  }
  EXPECT_GT(valid, 3000u);
}

}  // namespace
}  // namespace ds4::text
