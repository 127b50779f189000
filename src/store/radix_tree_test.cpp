#include "store/radix_tree.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace ds4::store {
namespace {

TEST(RadixTree, FindsTheLongestKeyThatATextBeginsWith) {
  RadixTree<int> tree;
  EXPECT_EQ(tree.longest_prefix("abc").value, nullptr);
  EXPECT_TRUE(tree.insert("abc", 1));
  EXPECT_TRUE(tree.insert("ab", 2));
  EXPECT_TRUE(tree.insert("abd", 3));
  EXPECT_FALSE(tree.insert("abc", 4));
  EXPECT_EQ(tree.size(), 3u);
  EXPECT_EQ(*tree.longest_prefix("abcd").value, 4);
  EXPECT_EQ(tree.longest_prefix("abcd").length, 3u);
  EXPECT_EQ(*tree.longest_prefix("abx").value, 2);
  EXPECT_EQ(tree.longest_prefix("a").value, nullptr);
  EXPECT_EQ(tree.find("a"), nullptr);
  EXPECT_TRUE(tree.insert("", 9));
  EXPECT_EQ(*tree.longest_prefix("zzz").value, 9);
}

TEST(RadixTree, AgreesWithAMap) {
  std::mt19937 random(7);
  const auto key = [&] {
    std::string text(random() % 9, 'a');
    for (char& c : text) c = "ab\xff"[random() % 3];
    return text;
  };
  RadixTree<unsigned> tree;
  std::map<std::string, unsigned> expected;
  for (unsigned step = 0; step < 20000; ++step) {
    const std::string name = key();
    if (random() % 3 == 0) {
      EXPECT_EQ(tree.erase(name), expected.erase(name) == 1);
    } else {
      EXPECT_EQ(tree.insert(name, step), !expected.contains(name));
      expected[name] = step;
    }
    EXPECT_EQ(tree.size(), expected.size());
    const std::string text = key();
    size_t length = text.size() + 1;
    while (length > 0 && !expected.contains(text.substr(0, length - 1))) --length;
    const auto match = tree.longest_prefix(text);
    ASSERT_EQ(match.value != nullptr, length > 0);
    if (length > 0) {
      EXPECT_EQ(match.length, length - 1);
      EXPECT_EQ(*match.value, expected[text.substr(0, length - 1)]);
    }
  }
}

}  // namespace
}  // namespace ds4::store
