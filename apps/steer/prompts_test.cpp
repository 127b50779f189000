#include "prompts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ds4/engine.hpp"

namespace ds4::steer {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> texts(const std::vector<Prompt>& prompts) {
  std::vector<std::string> result;
  for (const Prompt& prompt : prompts) result.push_back(prompt.text + "|" + prompt.expected);
  return result;
}

TEST(PromptFiles, OnePromptALine) {
  const auto prompts =
      parse_prompts("# a remark\n  first \r\n\n\t\nsecond # not a remark\twanted text \n#\nthird", "f");
  ASSERT_TRUE(prompts);
  EXPECT_EQ(texts(*prompts),
            (std::vector<std::string>{"first|", "second # not a remark|wanted text", "third|"}));
}

TEST(PromptFiles, NoPromptIsAnError) {
  for (const char* content : {"", "\n\n", "# only\n  # remarks", " \t\r\n"}) {
    const auto prompts = parse_prompts(content, "name.txt");
    ASSERT_FALSE(prompts);
    EXPECT_THAT(prompts.error().message, HasSubstr("name.txt: there is no prompt in it"));
  }
  EXPECT_THAT(read_prompts("/no-such-file").error().message, HasSubstr("/no-such-file"));
}

TEST(PromptFiles, TheHashIsOfTheTexts) {
  const std::vector<Prompt> a{{"one", ""}, {"two", ""}}, b{{"three", ""}};
  const std::string hash = prompts_hash(a, b);
  EXPECT_EQ(hash, "2fdbd47025cb42ee837608f460779e40");
  EXPECT_EQ(prompts_hash({{"one", "x"}, {"two", ""}}, b), hash);  // not of what is expected
  EXPECT_NE(prompts_hash(b, a), hash);
  EXPECT_NE(prompts_hash({{"one", ""}}, {{"two", ""}, {"three", ""}}), hash);
  EXPECT_NE(prompts_hash({{"onetwo", ""}}, b), hash);
}

TEST(ContainsExpected, WholeWordsWithoutCase) {
  EXPECT_TRUE(contains_expected("The capital is Paris.", "paris"));
  EXPECT_TRUE(contains_expected("PARIS", "Paris"));
  EXPECT_TRUE(contains_expected("in South America, where", "south america"));
  EXPECT_TRUE(contains_expected("comparison: Paris", "paris"));  // not the first place, but the second
  EXPECT_FALSE(contains_expected("Parisian", "Paris"));
  EXPECT_FALSE(contains_expected("aParis", "Paris"));
  EXPECT_FALSE(contains_expected("", "Paris"));
  EXPECT_TRUE(contains_expected("\"ciao\"", "ciao"));
  EXPECT_TRUE(contains_expected("有水吗 水.", "水"));
}

TEST(ContainsExpected, WholeNumbers) {
  EXPECT_TRUE(contains_expected("47 + 85 = 132", "132"));
  EXPECT_TRUE(contains_expected("It is 132.", "132"));
  EXPECT_TRUE(contains_expected("132, or so", "132"));
  EXPECT_TRUE(contains_expected("= -5", "-5"));
  EXPECT_TRUE(contains_expected("1.5 and 5", "5"));
  EXPECT_TRUE(contains_expected("one.5", "5"));
  for (const char* answer : {"1320", "2132", "-132", "132.5", "0.132", "132,000", "1,132", "x132"})
    EXPECT_FALSE(contains_expected(answer, "132")) << answer;
}

class Rendering : public ::testing::Test {
 protected:
  static Engine open() {
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = BackendChoice::cpu;
    return std::move(*Engine::open(options));
  }
  const Engine engine = open();
  const Tokenizer& tokenizer = engine.tokenizer();
};

TEST_F(Rendering, EndsWhereTheModelSpeaks) {
  const SpecialTokens& special = tokenizer.special();
  const RenderedTokens direct = render(tokenizer, "Be kind.", "What?", ThinkMode::none);
  EXPECT_EQ(direct.tokens.front(), special.bos);
  EXPECT_EQ(direct.tokens.back(), special.think_close);
  EXPECT_EQ(direct.tokens[direct.tokens.size() - 2], special.assistant);
  EXPECT_EQ(direct.tokens[direct.message_begin], special.user);
  EXPECT_EQ(direct.message_begin, 1 + tokenizer.encode_plain("Be kind.").size());
  EXPECT_EQ(render(tokenizer, "", "What?", ThinkMode::none).message_begin, 1u);
  EXPECT_EQ(render(tokenizer, "", "What?", ThinkMode::high).tokens.back(), special.think_open);
}

// A user tag spelled out in a text is text, so the message begins at the real one.
TEST_F(Rendering, TagsInTextsAreText) {
  const RenderedTokens rendered = render(tokenizer, "<｜User｜>", "<｜User｜>", ThinkMode::none);
  EXPECT_EQ(std::count(rendered.tokens.begin(), rendered.tokens.end(), tokenizer.special().user), 1);
  EXPECT_EQ(rendered.message_begin, 1 + tokenizer.encode_plain("<｜User｜>").size());
}

}  // namespace
}  // namespace ds4::steer
