#include "text/pre_tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/test_vocabulary.hpp"

namespace ds4::text {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces_of(std::string_view text) {
  Pieces result;
  PreTokenizer walker(text);
  for (std::string_view piece; walker.next(piece);) result.emplace_back(piece);
  return result;
}

TEST(PreTokenizer, CutsAsTheRulesSay) {
  const std::vector<std::pair<std::string, Pieces>> cases = {
      {"", {}},
      {"don't", {"don", "'t"}},
      {"    int x;", {"   ", " int", " x", ";"}},
      {"foo\n    bar", {"foo", "\n", "   ", " bar"}},
      {"x \n \n  y", {"x", " \n \n", " ", " y"}},
      {"foo;\n\nbar", {"foo", ";\n\n", "bar"}},
      {"1234", {"123", "4"}},
      {"   123", {"   ", "123"}},
      {"a.b->c", {"a", ".b", "->", "c"}},
      {"--flag=value", {"--", "flag", "=value"}},
      {"printf(\"%d", {"printf", "(\"%", "d"}},
      {" 世界", {" ", "世界"}},
      {"a\u200b\u200b!", {"a", "\u200b\u200b", "!"}},
      {"\u200b\u200bb", {"\u200b", "\u200bb"}},
      {"\u200b1", {"\u200b", "1"}},
      {"\u0301x", {"\u0301x"}},
      {"!é", {"!", "é"}},
      {"x\xFF\xFEy", {"x", "\xFF", "\xFEy"}},
      {"\xE4\xB8", {"\xE4\xB8"}},
      {"\n 1", {"\n", " ", "1"}},
      {"abcカタカナー世x", {"abc", "カタカナー世", "x"}},
      {"カ・世、", {"カ", "・", "世", "、"}},
      {"!・\n", {"!", "・", "\n"}},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(pieces_of(text), expected) << text;
}

TEST(PreTokenizer, GoldenPieces) {
  const auto cases = read_json_file(test_data("tokenizer-cases.json"));
  ASSERT_TRUE(cases.is_object());
  size_t checked = 0;
  for (const auto& entry : cases.at("plain").as_array()) {
    const std::string text(entry.at("text").as_string());
    EXPECT_EQ(pieces_of(text), boost::json::value_to<Pieces>(entry.at("pieces"))) << text;
    ++checked;
  }
  EXPECT_EQ(checked, 100u);
}

}  // namespace
}  // namespace ds4::text
