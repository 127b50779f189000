#include "ds4/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "text/special_tokens.hpp"
#include "text/test_vocabulary.hpp"
#include "text/utf8.hpp"

namespace ds4::text {
namespace {

std::string random_bytes(std::mt19937& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

/// Characters of all classes, special spellings and parts of them.
std::string random_text(std::mt19937& random, size_t parts) {
  constexpr char32_t kCharacters[] = {'a',    'Z',    '\'',   '.',    ' ',    ' ',    '\n',
                                      '\r',   '\t',   '7',    0xBD,   0x664,  0xE9,   0x302,
                                      0x4E16, 0x30AB, 0x3005, 0xAC00, 0x2014, 0xFF5C, 0x1F642,
                                      0x200B, 0xA0,   0x85,   0x3000, 0,      0xFFFF, 0x10FFFF};
  std::string text;
  for (size_t i = 0; i < parts; ++i) {
    const size_t choice = random() % 12;
    if (choice == 0) {
      text += kSpecialSpellings[random() % kSpecialSpellings.size()].text;
    } else if (choice == 1) {
      const std::string_view spelling = kSpecialSpellings[random() % kSpecialSpellings.size()].text;
      text += spelling.substr(0, random() % spelling.size());
    } else {
      append_utf8(text, kCharacters[random() % std::size(kCharacters)]);
    }
  }
  return text;
}

TEST(Tokenizer, NanoGoldenPrompts) {
  const auto golden = read_json_file(test_data("nano/prompts.json"));
  ASSERT_TRUE(golden.is_object());
  size_t checked = 0;
  for (const auto& prompt : golden.at("prompts").as_array()) {
    const std::string text(prompt.at("text").as_string());
    const std::vector<Token> ids = token_list(prompt.at("ids"));
    EXPECT_EQ(nano_tokenizer().encode_rendered(text), ids) << text;
    EXPECT_EQ(nano_tokenizer().decode(ids), text);
    ++checked;
  }
  EXPECT_EQ(checked, 12u);
}

TEST(Tokenizer, SpecialTokensByName) {
  const Tokenizer& tokenizer = nano_tokenizer();
  EXPECT_EQ(tokenizer.vocabulary_size(), 4096u);
  EXPECT_EQ(tokenizer.special().bos, 0);
  EXPECT_EQ(tokenizer.special().eos, 1);
  EXPECT_EQ(tokenizer.special().user, 4091);
  EXPECT_EQ(tokenizer.special().assistant, 4092);
  EXPECT_EQ(tokenizer.special().think_open, 4093);
  EXPECT_EQ(tokenizer.special().think_close, 4094);
  EXPECT_EQ(tokenizer.special().dsml, 4095);
}

TEST(Tokenizer, PlainTextNeverHoldsSpecialTokens) {
  const Tokenizer& tokenizer = nano_tokenizer();
  for (const SpecialSpelling& spelling : kSpecialSpellings) {
    const std::string text = "x" + std::string(spelling.text) + "y";
    const Token id = tokenizer.special().*spelling.id;
    EXPECT_THAT(tokenizer.encode_plain(text), testing::Not(testing::Contains(id)));
    EXPECT_THAT(tokenizer.encode_rendered(text), testing::Contains(id));
    EXPECT_EQ(tokenizer.decode(id), spelling.text);
  }
}

TEST(Tokenizer, TextBetweenSpecialTokensStandsAlone) {
  const Tokenizer& tokenizer = nano_tokenizer();
  std::vector<Token> expected = tokenizer.encode_plain("a  ");
  expected.push_back(tokenizer.special().eos);
  for (const Token token : tokenizer.encode_plain(" b")) expected.push_back(token);
  EXPECT_EQ(tokenizer.encode_rendered("a  " + std::string(kEos) + " b"), expected);
  EXPECT_TRUE(tokenizer.encode_rendered("").empty());
  EXPECT_TRUE(tokenizer.encode_plain("").empty());
}

TEST(Tokenizer, RoundTripsAnyBytes) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    const std::string text =
        round % 2 == 0 ? random_bytes(random, random() % 300) : random_text(random, random() % 200);
    ASSERT_EQ(nano_tokenizer().decode(nano_tokenizer().encode_plain(text)), text);
    ASSERT_EQ(nano_tokenizer().decode(nano_tokenizer().encode_rendered(text)), text);
  }
}

TEST(Tokenizer, IdsOutsideTheVocabulary) {
  const Tokenizer& tokenizer = nano_tokenizer();
  for (const Token token : {-1, 4096, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer.decode(token), "");
    EXPECT_EQ(tokenizer.vocabulary_string(token), "");
  }
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{-1, tokenizer.find("Ġthe"), 9999}), " the");
  EXPECT_EQ(tokenizer.vocabulary_string(tokenizer.find("Ġthe")), "Ġthe");
  EXPECT_EQ(tokenizer.find("no such token"), -1);
}

std::vector<std::string> special_spellings() {
  std::vector<std::string> tokens;
  for (const SpecialSpelling& spelling : kSpecialSpellings) tokens.emplace_back(spelling.text);
  return tokens;
}

TEST(Tokenizer, RefusesAVocabularyWithoutASpecialToken) {
  for (size_t missing = 0; missing < kSpecialSpellings.size(); ++missing) {
    VocabularyTables tables{special_spellings(), {}};
    tables.tokens[missing] = "x";
    const auto tokenizer = tables.make();
    ASSERT_FALSE(tokenizer);
    EXPECT_THAT(tokenizer.error().message, testing::HasSubstr(std::string(kSpecialSpellings[missing].text)));
  }
  EXPECT_FALSE(Tokenizer::create({}, {}));
}

TEST(Tokenizer, LastOfEqualVocabularyStringsCounts) {
  VocabularyTables tables{special_spellings(), {}};
  tables.tokens.insert(tables.tokens.end(), {"a", "b", "a"});
  const auto tokenizer = tables.make();
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->find("a"), 9);
  EXPECT_EQ(tokenizer->encode_plain("ab"), (std::vector<Token>{9, 8}));
  EXPECT_EQ(tokenizer->decode(7), "a");
}

TEST(Tokenizer, DecodesAddedTokensLiterally) {
  VocabularyTables tables{special_spellings(), {}};
  tables.tokens.insert(tables.tokens.end(), {"Ġ｜Ġ", "<|EOT|>", "ĠĀ世x", "\xFFok"});
  const auto tokenizer = tables.make();
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->decode(7), "Ġ｜Ġ");
  EXPECT_EQ(tokenizer->decode(8), "<|EOT|>");
  EXPECT_EQ(tokenizer->decode(9), std::string(" \0x", 3)) << "characters outside the alphabet are dropped";
  EXPECT_EQ(tokenizer->decode(10), "ok");
}

/// A quadratic path would need minutes for these; the limit leaves room for sanitizers and busy machines.
TEST(Tokenizer, TimeIsLinear) {
  std::mt19937 random(3);
  constexpr size_t kSize = 1 << 20;
  std::string letters(kSize, 'a');
  for (char& c : letters) c = static_cast<char>('a' + random() % 26);
  std::string specials;
  while (specials.size() < kSize) specials += "<｜User｜";
  const std::vector<std::string> texts = {letters,
                                          std::string(kSize, 'e'),
                                          std::string(kSize, ' '),
                                          std::string(kSize, '1'),
                                          std::string(kSize, '\n'),
                                          std::string(kSize, '\0'),
                                          random_bytes(random, kSize),
                                          specials};
  for (const std::string& text : texts) {
    const std::clock_t begin = std::clock();
    const std::vector<Token> tokens = nano_tokenizer().encode_rendered(text);
    const double cpu_seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_EQ(nano_tokenizer().decode(tokens), text);
    EXPECT_LT(cpu_seconds, 20.0);
  }
}

}  // namespace
}  // namespace ds4::text
