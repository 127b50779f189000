// Prompts and replies of the hosted model (docs/official-vectors.md): the tokens that it counted and sent.
#include "model_check.hpp"
#include "real_vocabulary.hpp"

namespace ds4::vectors {
namespace {

class OfficialPrompts : public text::RealVocabulary {
 protected:
  void SetUp() override {
    RealVocabulary::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto read = read_vectors(text::test_data("official-vectors"));
    ASSERT_TRUE(read) << read.error().message;
    vectors = std::move(*read);
    ASSERT_EQ(vectors.size(), 5u);
    tokenizer = text::real_tokenizer();
  }

  const Tokenizer* tokenizer = nullptr;
  std::vector<Vector> vectors;
};

TEST_F(OfficialPrompts, HaveTheCountedTokensAndTheirOwnBytes) {
  const SpecialTokens& special = tokenizer->special();
  for (const Vector& vector : vectors) {
    const std::vector<Token> ids = prompt_tokens(*tokenizer, vector.prompt);
    EXPECT_EQ(ids.size(), vector.reply.prompt_tokens) << vector.recorded.id;
    ASSERT_GT(ids.size(), 4u);
    EXPECT_EQ(ids[0], special.bos);
    EXPECT_EQ(ids[1], special.user);
    EXPECT_EQ(ids[ids.size() - 2], special.assistant);
    EXPECT_EQ(ids.back(), special.think_close);
    EXPECT_EQ(tokenizer->decode(std::span(ids).subspan(2, ids.size() - 4)), vector.prompt);
  }
}

TEST_F(OfficialPrompts, RepliesAreTokenizedAsTheyWereSent) {
  for (const Vector& vector : vectors) {
    std::vector<std::string> sent, ours;
    for (const RecordedStep& step : vector.recorded.steps) sent.push_back(step.selected);
    for (const Token token : tokenizer->encode_plain(vector.reply.content)) {
      ours.push_back(tokenizer->decode(token));
    }
    EXPECT_EQ(ours, sent) << vector.recorded.id;
  }
}

TEST_F(OfficialPrompts, EveryTokenThatWasSentIsInTheVocabulary) {
  const TokensByBytes tokens(*tokenizer);
  size_t sent = 0;
  for (const Vector& vector : vectors) {
    for (const RecordedStep& step : vector.reply.steps) {
      for (const RecordedToken& token : step.top) {
        EXPECT_GE(tokens.find(token.bytes), 0) << vector.recorded.id << ": " << token.bytes;
        ++sent;
      }
    }
  }
  EXPECT_EQ(sent, 340u);
  EXPECT_LT(tokens.find("no such token"), 0);
}

}  // namespace
}  // namespace ds4::vectors
