#include "line_buffer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace ds4::cli {
namespace {

LineBuffer with(std::string text, size_t cursor) {
  LineBuffer buffer;
  buffer.set(std::move(text), cursor);
  return buffer;
}

TEST(LineBuffer, InsertsAtTheCursor) {
  LineBuffer b;
  b.insert("ac");
  b.left();
  b.insert("b");
  EXPECT_EQ(b.text(), "abc");
  EXPECT_EQ(b.cursor(), 2u);
}

TEST(LineBuffer, MovesOverWholeCharacters) {
  // a, e with combining acute, CJK, family emoji joined by ZWJ, two regional indicators
  const std::string parts[] = {"a", "e\u0301", "\u4e2d", "\U0001F468\u200d\U0001F469\u200d\U0001F467",
                               "\U0001F1EE\U0001F1F9"};
  LineBuffer b;
  for (const auto& part : parts) b.insert(part);
  size_t end = b.text().size();
  for (size_t i = std::size(parts); i-- > 0;) {
    b.left();
    end -= parts[i].size();
    EXPECT_EQ(b.cursor(), end) << parts[i];
  }
  b.left();
  EXPECT_EQ(b.cursor(), 0u);
  for (const auto& part : parts) {
    b.right();
    end += part.size();
    EXPECT_EQ(b.cursor(), end) << part;
  }
  for (size_t i = std::size(parts); i-- > 0;) b.erase_before();
  EXPECT_TRUE(b.empty());
}

TEST(LineBuffer, InvalidBytesAreCharactersOfTheirOwn) {
  LineBuffer b = with("\xff\xfe\xc3", 3);
  b.left();
  EXPECT_EQ(b.cursor(), 2u);
  b.erase_before();
  EXPECT_EQ(b.text(), "\xff\xc3");
  b.erase_at();
  EXPECT_EQ(b.text(), "\xff");
}

TEST(LineBuffer, LinesOfTheText) {
  LineBuffer b = with("first\nsecond line\nx", 10);
  b.line_begin();
  EXPECT_EQ(b.cursor(), 6u);
  b.line_end();
  EXPECT_EQ(b.cursor(), 17u);
  EXPECT_TRUE(b.line_up());
  EXPECT_EQ(b.cursor(), 5u);
  EXPECT_FALSE(b.line_up());
  EXPECT_TRUE(b.line_down());
  EXPECT_EQ(b.cursor(), 11u);
  EXPECT_TRUE(b.line_down());
  EXPECT_EQ(b.cursor(), 19u);
  EXPECT_FALSE(b.line_down());
}

TEST(LineBuffer, Words) {
  LineBuffer b = with("one  two-three", 14);
  b.word_left();
  EXPECT_EQ(b.cursor(), 9u);
  b.word_left();
  b.word_left();
  EXPECT_EQ(b.cursor(), 0u);
  b.word_right();
  EXPECT_EQ(b.cursor(), 3u);
}

TEST(LineBuffer, CutAndYank) {
  LineBuffer b = with("alpha beta gamma", 16);
  b.cut_word_before();
  EXPECT_EQ(b.text(), "alpha beta ");
  b.line_begin();
  b.yank();
  EXPECT_EQ(b.text(), "gammaalpha beta ");
  b.cut_to_line_end();
  EXPECT_EQ(b.text(), "gamma");
  b.cut_to_line_begin();
  EXPECT_EQ(b.text(), "");
  b.yank();
  EXPECT_EQ(b.text(), "gamma");
  b = with("ab\ncd", 2);
  b.cut_to_line_end();
  EXPECT_EQ(b.text(), "abcd");
  b = with("one two", 0);
  b.cut_word_at();
  EXPECT_EQ(b.text(), " two");
}

TEST(LineBuffer, TrailingBackslash) {
  EXPECT_TRUE(with("a\\", 2).take_trailing_backslash());
  EXPECT_FALSE(with("a\\", 1).take_trailing_backslash());
  EXPECT_FALSE(with("", 0).take_trailing_backslash());
}

TEST(DisplayWidth, CombiningWideAndControl) {
  EXPECT_EQ(display_width("abc"), 3u);
  EXPECT_EQ(display_width("e\u0301"), 1u);
  EXPECT_EQ(display_width("\u4e2d\u6587"), 4u);
  EXPECT_EQ(display_width("\t\x1b"), 4u);
  EXPECT_EQ(display_width("\xff"), 1u);
}

TEST(LayOut, WrapsAtTheWidth) {
  const Layout l = lay_out("abcdefgh", 8, 5, 2);
  ASSERT_EQ(l.rows.size(), 3u);  // "abc", "defgh", and a place for the cursor
  EXPECT_EQ(l.rows[0].end, 3u);
  EXPECT_EQ(l.rows[1].begin, 3u);
  EXPECT_EQ(l.rows[1].indent, 0u);
  EXPECT_EQ(l.cursor_row, 2u);
  EXPECT_EQ(l.cursor_column, 0u);
}

TEST(LayOut, WideCharactersAreNotSplit) {
  const Layout l = lay_out("\u4e2d\u6587", 3, 3, 0);
  ASSERT_EQ(l.rows.size(), 2u);
  EXPECT_EQ(l.rows[1].begin, 3u);
  EXPECT_EQ(l.cursor_row, 1u);
  EXPECT_EQ(l.cursor_column, 0u);
}

TEST(LayOut, LineBreaks) {
  const Layout l = lay_out("ab\n\ncd", 3, 80, 5);
  ASSERT_EQ(l.rows.size(), 3u);
  EXPECT_EQ(l.rows[1].indent, 5u);
  EXPECT_EQ(l.cursor_row, 1u);
  EXPECT_EQ(l.cursor_column, 5u);
  const Layout full = lay_out("abc\nd", 3, 3, 0);
  EXPECT_EQ(full.cursor_row, 1u);
  EXPECT_EQ(full.rows.size(), 3u);
}

TEST(LayOut, TinyScreens) {
  for (size_t columns = 0; columns < 4; ++columns) {
    const Layout l = lay_out("\u4e2d\u6587x\t", 0, columns, 5);
    EXPECT_GE(l.rows.size(), 2u);
  }
}

TEST(LineBuffer, LongTextStaysFast) {
  const auto begin = std::chrono::steady_clock::now();
  LineBuffer b;
  std::string text;
  while (text.size() < 200000) text += "\u00e9\u4e2dword ";
  b.insert(text);
  for (int i = 0; i < 100; ++i) {
    b.left();
    b.insert("x");
    const Layout l = lay_out(b.text(), b.cursor(), 80, 5);
    EXPECT_GT(l.rows.size(), 1000u);
  }
  // 100 keys in a text of 200 kB; quadratic work would take minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace ds4::cli
