#include "output_printer.hpp"

#include <gtest/gtest.h>

namespace ds4::cli {
namespace {

/// What is shown when `text` arrives in pieces of `step` bytes.
std::string shown(std::string_view text, size_t step, bool thinking, bool terminal) {
  std::string out;
  OutputPrinter printer(
      [&](std::string_view bytes) {
        out += bytes;
        return true;
      },
      thinking, terminal);
  for (size_t i = 0; i < text.size(); i += step) EXPECT_TRUE(printer.push(text.substr(i, step)));
  EXPECT_TRUE(printer.finish());
  return out;
}

TEST(OutputPrinter, PlainAnswerEndsWithOneLineBreak) {
  for (size_t step = 1; step <= 12; ++step) {
    EXPECT_EQ(shown("Tokyo.", step, false, false), "Tokyo.\n");
    EXPECT_EQ(shown("Tokyo.\n", step, false, true), "Tokyo.\n");
  }
  EXPECT_EQ(shown("", 1, false, false), "");
}

TEST(OutputPrinter, ReasoningIsSeparatedAtAnySplit) {
  const std::string reply = "2 < 3, so</think>Yes.";
  for (size_t step = 1; step <= reply.size(); ++step) {
    EXPECT_EQ(shown(reply, step, true, false), "2 < 3, so\nYes.\n") << step;
  }
}

TEST(OutputPrinter, ReasoningIsDimOnATerminal) {
  EXPECT_EQ(shown("why</think>Yes.", 15, true, true), "\x1b[90mwhy\x1b[0m\nYes.\n");
  EXPECT_EQ(shown("why\n</think>Yes.", 16, true, true), "\x1b[90mwhy\n\x1b[0mYes.\n");
  EXPECT_EQ(shown("cut", 3, true, true), "\x1b[90mcut\x1b[0m\n");
  EXPECT_EQ(shown("</think>Yes.", 12, true, true), "Yes.\n");
}

TEST(OutputPrinter, TagsAreTextWithoutThinking) {
  EXPECT_EQ(shown("a</think>b", 3, false, false), "a</think>b\n");
}

TEST(OutputPrinter, CharactersAreNotSplit) {
  std::vector<std::string> writes;
  OutputPrinter printer(
      [&](std::string_view bytes) {
        writes.emplace_back(bytes);
        return true;
      },
      false, false);
  for (const char c : std::string("a\u00e8\U0001F600")) printer.push(std::string(1, c));
  printer.finish();
  EXPECT_EQ(writes, (std::vector<std::string>{"a", "\u00e8", "\U0001F600", "\n"}));
}

TEST(OutputPrinter, UnfinishedCharactersAppearAtTheEnd) {
  EXPECT_EQ(shown("a\xf0\x9f", 1, false, false), "a\xf0\x9f\n");
}

TEST(OutputPrinter, ATextCannotCommandTheTerminal) {
  const std::string reply = "\x1b]0;title\x07\ta\x1b[2J\u009b1m\x7f\xff\nb</think>\x1b[31mred\r\n";
  for (size_t step = 1; step <= reply.size(); ++step) {
    EXPECT_EQ(shown(reply, step, true, true),
              "\x1b[90m^[]0;title^G\ta^[[2J^?1m^?\xef\xbf\xbd\nb\x1b[0m\n^[[31mred^M\n")
        << step;
  }
}

TEST(OutputPrinter, BytesAreExactElsewhere) {
  const std::string reply = "\x1b]0;title\x07\ta\x1b[2J\u009b1m\x7f\xff\r\n";
  for (size_t step = 1; step <= reply.size(); ++step) EXPECT_EQ(shown(reply, step, false, false), reply);
}

TEST(OutputPrinter, ReportsAFailedWrite) {
  OutputPrinter printer([](std::string_view) { return false; }, false, false);
  EXPECT_FALSE(printer.push("a"));
}

}  // namespace
}  // namespace ds4::cli
