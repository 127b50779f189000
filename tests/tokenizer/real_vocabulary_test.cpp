// The golden tokenizations and conversations, with the vocabulary they belong to.
#include "real_vocabulary.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <random>

#include "text/test_chat_cases.hpp"

namespace ds4::text {
namespace {

TEST_F(RealVocabulary, SpecialTokens) {
  const Tokenizer& tokenizer = *real_tokenizer();
  EXPECT_EQ(tokenizer.vocabulary_size(), 129280u);
  const SpecialTokens& special = tokenizer.special();
  EXPECT_EQ((std::vector<Token>{special.bos, special.eos, special.user, special.assistant, special.think_open,
                                special.think_close, special.dsml}),
            (std::vector<Token>{0, 1, 128803, 128804, 128821, 128822, 128825}));
}

TEST_F(RealVocabulary, GoldenTokenizations) {
  const Tokenizer& tokenizer = *real_tokenizer();
  const auto cases = read_json_file(test_data("tokenizer-cases.json"));
  ASSERT_TRUE(cases.is_object());
  size_t checked = 0;
  for (const std::string kind : {"plain", "rendered"}) {
    for (const auto& entry : cases.at(kind).as_array()) {
      const std::string text(entry.at("text").as_string());
      const std::vector<Token> ids = token_list(entry.at("ids"));
      EXPECT_EQ(kind == "plain" ? tokenizer.encode_plain(text) : tokenizer.encode_rendered(text), ids)
          << text;
      EXPECT_EQ(tokenizer.decode(ids), text);
      ++checked;
    }
  }
  EXPECT_EQ(checked, 111u);
}

TEST_F(RealVocabulary, GoldenConversations) {
  const std::vector<ChatCase> cases = chat_cases();
  EXPECT_EQ(cases.size(), 17u);
  for (const ChatCase& entry : cases) {
    const RenderedPrompt prompt = render_chat(entry.messages, entry.options);
    EXPECT_EQ(prompt.encode(*real_tokenizer()), entry.ids) << entry.name;
    EXPECT_EQ(real_tokenizer()->decode(entry.ids), prompt.text()) << entry.name;
  }
}

TEST_F(RealVocabulary, EveryOrdinaryTokenIsReachable) {
  // BPE of a token's own text gives the token, or the text decodes to something else than whole characters.
  const Tokenizer& tokenizer = *real_tokenizer();
  size_t reached = 0;
  for (Token token = 3; token < 128000; ++token) {
    const std::string text = tokenizer.decode(token);
    const std::vector<Token> ids = tokenizer.encode_plain(text);
    reached += ids.size() == 1 && ids[0] == token;
    ASSERT_EQ(tokenizer.decode(ids), text);
  }
  EXPECT_GT(reached, 120000u);
  RecordProperty("reached", static_cast<int>(reached));
}

TEST_F(RealVocabulary, TimeIsLinear) {
  std::mt19937 random(3);
  constexpr size_t kSize = 1 << 20;
  const auto generate = [&](auto&& next_part) {
    std::string text;
    while (text.size() < kSize) text += next_part();
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"random letters", generate([&] { return std::string(1, static_cast<char>('a' + random() % 26)); })},
      {"one letter", std::string(kSize, 'a')},
      {"spaces", std::string(kSize, ' ')},
      {"digits", generate([&] { return std::to_string(random()); })},
      {"random bytes", generate([&] { return std::string(1, static_cast<char>(random())); })},
      {"one CJK character", generate([&] { return std::string("世"); })},
      {"punctuation", std::string(kSize, '!')},
      {"words", generate([&] { return std::string(random() % 3 ? " the" : " quick\n"); })},
  };
  for (const auto& [name, text] : texts) {
    const std::clock_t begin = std::clock();
    const std::vector<Token> tokens = real_tokenizer()->encode_plain(text);
    const double cpu_seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    std::printf("%-18s %8zu tokens %6.3f s\n", name.c_str(), tokens.size(), cpu_seconds);
    EXPECT_EQ(real_tokenizer()->decode(tokens), text) << name;
    EXPECT_LT(cpu_seconds, 20.0) << name << ": a quadratic path would need minutes";
  }
}

}  // namespace
}  // namespace ds4::text
