#include <gtest/gtest.h>

#include <random>

#include "ds4/chat.hpp"

namespace ds4 {
namespace {

struct Split {
  std::string reasoning;
  std::string answer;
  bool operator==(const Split&) const = default;
};

Split split(const std::vector<std::string>& parts, bool think) {
  ReasoningSplitter splitter(think);
  Split result;
  const auto add = [&](const std::vector<ReasoningSplitter::Piece>& pieces) {
    for (const auto& piece : pieces) {
      EXPECT_FALSE(piece.text.empty());
      EXPECT_TRUE(!piece.reasoning || result.answer.empty()) << "reasoning after the answer began";
      (piece.reasoning ? result.reasoning : result.answer) += piece.text;
    }
  };
  for (const std::string& part : parts) add(splitter.push(part));
  add(splitter.flush());
  add(splitter.flush());
  return result;
}

TEST(ReasoningSplitter, AgreesWithParseReplyAtEverySplit) {
  const std::vector<std::string> texts = {"why?</think>because",
                                          "<think>why?</think>because",
                                          "</think>because",
                                          "<think></think>",
                                          "no end <",
                                          "no end </thin",
                                          "a<think>b</think>c",
                                          "x</</think>y</think>z",
                                          "<thin</think>k>",
                                          "<think><think></think>",
                                          "",
                                          "<",
                                          "\n\n</think>\n\nb",
                                          "é</think>世</th"};
  for (const std::string& text : texts) {
    for (const bool think : {true, false}) {
      const ParsedReply whole = parse_reply(text, think, false);
      const Split expected{whole.reasoning, whole.content};
      for (size_t first = 0; first <= text.size(); ++first) {
        for (size_t second = first; second <= text.size(); ++second) {
          ASSERT_EQ(
              split({text.substr(0, first), text.substr(first, second - first), text.substr(second)}, think),
              expected)
              << text << " " << first << " " << second;
        }
      }
      std::vector<std::string> bytes;
      for (const char c : text) bytes.emplace_back(1, c);
      EXPECT_EQ(split(bytes, think), expected);
    }
  }
}

TEST(ReasoningSplitter, ShowsTextAsSoonAsItIsCertain) {
  ReasoningSplitter splitter(true);
  EXPECT_TRUE(splitter.push("<").empty());
  ASSERT_EQ(splitter.push("a").size(), 1u);
  const auto pieces = splitter.push("bc</thi");
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].text, "bc");
  EXPECT_TRUE(pieces[0].reasoning);
  EXPECT_TRUE(splitter.in_reasoning());
  const auto rest = splitter.push("nk>answer </think>");
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].text, "answer </think>");
  EXPECT_FALSE(rest[0].reasoning);
  EXPECT_FALSE(splitter.in_reasoning());
}

}  // namespace
}  // namespace ds4
