#include "store/text_borders.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/special_tokens.hpp"

namespace ds4::store {
namespace {

TEST(TextBorders, DoNotDependOnHowTextIsCutIntoTokens) {
  TextBorderBuilder one, other;
  one.add("<A>", true);
  one.add("hello", false);
  one.add("<B>", true);
  one.add("x", false);
  other.add("<A>", true);
  other.add("hel", false);
  other.add("lo", false);
  other.add("<B>", true);
  other.add("x", false);
  const auto a = one.borders(), b = other.borders();
  ASSERT_EQ(a.size(), 3u);  // before each special token, and the end
  ASSERT_EQ(b.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(a[i].hash, b[i].hash);
    EXPECT_EQ(a[i].text_bytes, b[i].text_bytes);
  }
  EXPECT_EQ(a[1].tokens, 2u);
  EXPECT_EQ(b[1].tokens, 3u);
  EXPECT_EQ(b[2].tokens, 5u);
  const auto prompt = prompt_borders("<A>hello<B>xyz", std::vector<size_t>{0, 8});
  ASSERT_EQ(prompt.size(), 2u);
  EXPECT_EQ(prompt[1].hash, a[1].hash);
  // Asking does not change what comes after.
  one.add("y", false);
  EXPECT_NE(one.borders().back().hash, a.back().hash);
}

TEST(TextBorders, TypedTagsAreNotSpecial) {
  const auto real = prompt_borders("<A>hello<B>", std::vector<size_t>{0, 8});
  const auto typed = prompt_borders("<A>hello<B>", std::vector<size_t>{8});
  EXPECT_EQ(real.back().text_bytes, typed.back().text_bytes);
  EXPECT_NE(real.back().hash, typed.back().hash);
  EXPECT_NE(prompt_borders("ab<", std::vector<size_t>{1, 2}).back().hash,
            prompt_borders("ab<", std::vector<size_t>{2}).back().hash);
  // Places that are not in order or not in the text end the list.
  EXPECT_EQ(prompt_borders("abc", std::vector<size_t>{1, 9}).size(), 1u);
  EXPECT_EQ(prompt_borders("abc", std::vector<size_t>{2, 1}).size(), 1u);
}

TEST(TextBorders, TokensSpellATextOrDoNot) {
  std::vector<std::string> names{"a", "b", "ab", "c"};
  for (const auto& spelling : text::kSpecialSpellings) names.emplace_back(spelling.text);
  const std::vector<std::string_view> views(names.begin(), names.end());
  const auto tokenizer = Tokenizer::create(views, {});
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const Token user = tokenizer->special().user, a = 0, b = 1, ab = 2, c = 3;
  const std::string text = std::string(text::kUser) + "abc" + std::string(text::kUser) + "a";
  const std::vector<size_t> special{0, text::kUser.size() + 3};
  const size_t turn = 2 * text::kUser.size() + 3;  // up to the end of the second tag
  const auto spells_first = [&](const std::vector<Token>& tokens, size_t bytes) {
    return spells(tokens, *tokenizer, std::string_view(text).substr(0, bytes), special);
  };
  EXPECT_TRUE(spells_first({user, ab, c, user}, turn));
  EXPECT_TRUE(spells_first({user, a, b, c, user, a}, text.size()));
  EXPECT_TRUE(spells_first({user, ab, c}, special[1])) << "the second tag is behind the text";
  EXPECT_TRUE(spells_first({}, 0));
  EXPECT_FALSE(spells_first({user, ab, c}, turn));
  EXPECT_FALSE(spells_first({user, ab, c, user, b}, text.size()));
  EXPECT_FALSE(spells_first({user, ab, user}, turn));
  EXPECT_FALSE(spells_first({ab, c}, special[1]));
  EXPECT_FALSE(spells_first({user, ab, c, user, a, a}, text.size()));
  // The same letters, but the second tag was typed, or one more was.
  const std::vector<Token> tokens{user, ab, c, user};
  const std::string_view first = std::string_view(text).substr(0, turn);
  EXPECT_FALSE(spells(tokens, *tokenizer, first, std::vector<size_t>{0}));
  EXPECT_FALSE(spells(tokens, *tokenizer, first, std::vector<size_t>{0, text::kUser.size() + 1, special[1]}));
  const auto borders = token_borders(std::vector<Token>{user, a, b, c, user, a}, *tokenizer);
  ASSERT_EQ(borders.size(), 3u);
  EXPECT_EQ(borders[1].hash, prompt_borders(text, special)[1].hash);
  EXPECT_EQ(borders[1].tokens, 4u);
}

}  // namespace
}  // namespace ds4::store
