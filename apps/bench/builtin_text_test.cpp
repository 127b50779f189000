#include "builtin_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace ds4::bench {
namespace {

TEST(BuiltinText, IsAsLongAsWanted) {
  for (const size_t bytes : {size_t{1}, size_t{1000}, size_t{1000000}}) {
    const size_t size = builtin_text(bytes).size();
    EXPECT_GE(size, bytes);
    EXPECT_LT(size, bytes + 4096);
  }
}

TEST(BuiltinText, ALongerOneBeginsWithAShorterOne) {
  const std::string text = builtin_text(100000);
  for (const size_t bytes : {500, 5000, 50000}) {
    const std::string beginning = builtin_text(bytes);
    EXPECT_EQ(text.substr(0, beginning.size()), beginning) << bytes;
  }
}

TEST(BuiltinText, IsProseWithoutOpenSlots) {
  const std::string text = builtin_text(300000);
  EXPECT_THAT(text, testing::StartsWith("Chapter 1. "));
  EXPECT_EQ(text.find('$'), std::string::npos);
  EXPECT_EQ(text.find("  "), std::string::npos);
  for (const char c : text) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
}

TEST(BuiltinText, ParagraphsDiffer) {
  std::istringstream lines(builtin_text(300000));
  std::set<std::string> seen;
  size_t paragraphs = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with("Chapter ")) continue;
    ++paragraphs;
    seen.insert(line);
  }
  EXPECT_GT(paragraphs, 300u);
  EXPECT_GT(seen.size(), paragraphs * 99 / 100);
}

}  // namespace
}  // namespace ds4::bench
