// Session::score() gives what single steps give, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "support/damaged_model.hpp"
#include "support/loaded_model.hpp"

namespace ds4 {
namespace {

using testing::must;

constexpr size_t given = 32;

const std::vector<Token>& text_tokens() {
  static const std::vector<Token> tokens = [] {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "The capital of Japan is Tokyo. " + std::to_string(i * 37) + " ";
    const Engine engine = must(Engine::open({.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf"}));
    auto all = engine.tokenizer().encode_plain(text);
    all.resize(500);
    return all;
  }();
  return tokens;
}

Engine open(uint32_t chunk = 4096, unsigned threads = 2,
            const std::string& path = DS4_SOURCE_DIR "/models/nano/nano.gguf") {
  return must(Engine::open(
      {.model_path = path, .backend = BackendChoice::cpu, .threads = threads, .prefill_chunk = chunk}));
}

Session started(const Engine& engine, uint64_t context = 1024) {
  Session session = must(engine.create_session(context));
  must(session.sync(std::span(text_tokens()).first(given)));
  return session;
}

std::span<const Token> scored_tokens() {
  return std::span(text_tokens()).subspan(given);
}

void expect_equal(const std::vector<TokenScore>& a, const std::vector<TokenScore>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].logprob, b[i].logprob) << i;
    ASSERT_EQ(a[i].likeliest, b[i].likeliest) << i;
  }
}

std::vector<TokenScore> single_steps(const Engine& engine) {
  Session session = started(engine);
  std::vector<TokenScore> scores;
  for (const Token token : scored_tokens()) {
    scores.push_back({token_logprob(must(session.logits()), token), must(session.argmax()) == token});
    must(session.eval(token));
  }
  return scores;
}

TEST(ScoreTest, EqualsSingleStepsForAnyThreadsAndChunks) {
  const auto expected = single_steps(open());
  EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](const auto& s) { return s.likeliest; }), 100);
  for (const unsigned threads : {1u, 2u, 3u}) {
    for (const uint32_t chunk : {1u, 7u, 100u, 4096u}) {
      const Engine engine = open(chunk, threads);
      Session session = started(engine);
      expect_equal(must(session.score(scored_tokens())), expected);
    }
  }
}

TEST(ScoreTest, InPiecesAndWhatFollowsIsTheSame) {
  const Engine engine = open();
  Session whole = started(engine), pieces = started(engine);
  const auto expected = must(whole.score(scored_tokens()));
  std::vector<TokenScore> scores;
  for (size_t done = 0, size = 1; done < scored_tokens().size(); size = size * 2 + 1) {
    const size_t count = std::min(size, scored_tokens().size() - done);
    for (const TokenScore& score : must(pieces.score(scored_tokens().subspan(done, count)))) {
      scores.push_back(score);
    }
    done += count;
  }
  expect_equal(scores, expected);
  EXPECT_TRUE(must(whole.score({})).empty());

  Session prompted = must(engine.create_session(1024));
  must(prompted.sync(text_tokens()));
  for (Session* session : {&whole, &pieces}) {
    EXPECT_TRUE(std::ranges::equal(session->tokens(), text_tokens()));
    EXPECT_TRUE(std::ranges::equal(must(session->logits()), must(prompted.logits())));
    must(session->rewind(200));
    must(session->sync(text_tokens()));
    EXPECT_TRUE(std::ranges::equal(must(session->logits()), must(prompted.logits())));
  }
}

TEST(ScoreTest, RefusesWhatCannotBeScored) {
  const Engine engine = open();
  Session session = must(engine.create_session(given + 10));
  EXPECT_EQ(session.score(scored_tokens()).error().code, ErrorCode::invalid_argument);
  must(session.sync(std::span(text_tokens()).first(given)));
  EXPECT_EQ(session.score(scored_tokens().first(11)).error().code, ErrorCode::context_full);
  EXPECT_EQ(session.score(std::vector<Token>{5, 4096}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(session.position(), given);
  EXPECT_EQ(must(session.score(scored_tokens().first(10))).size(), 10u);
  EXPECT_EQ(session.score(scored_tokens().first(1)).error().code, ErrorCode::context_full);
}

TEST(ScoreTest, ReportsProgressAndStops) {
  const Engine engine = open();
  Session session = started(engine);
  size_t last = given;
  int polls = 0;
  SyncOptions options;
  options.on_progress = [&](size_t done, size_t total) {
    EXPECT_EQ(total, text_tokens().size());
    EXPECT_GE(done, last);
    last = done;
  };
  options.cancelled = [&] { return ++polls == 9; };  // six layers a chunk: in the second
  EXPECT_EQ(session.score(scored_tokens(), options).error().code, ErrorCode::cancelled);
  EXPECT_EQ(session.position(), 128u);
  options.cancelled = {};
  last = 128;
  const size_t left = text_tokens().size() - 128;
  EXPECT_EQ(must(session.score(std::span(text_tokens()).subspan(128), options)).size(), left);
  EXPECT_EQ(last, text_tokens().size());
}

TEST(ScoreTest, NotANumberIsAnErrorThatNamesItsPosition) {
  constexpr size_t bad = 300;
  std::vector<Token> tokens = text_tokens();
  const Token poison = 4000;
  std::replace(tokens.begin(), tokens.end(), poison, 3999);
  tokens[bad] = poison;
  const testing::DamagedModel model(poison);
  const Engine engine = open(4096, 2, model.path());
  Session session = must(engine.create_session(1024));
  must(session.sync(std::span(tokens).first(given)));
  const auto scores = session.score(std::span(tokens).subspan(given));
  ASSERT_FALSE(scores);
  EXPECT_EQ(scores.error().code, ErrorCode::not_finite);
  EXPECT_NE(scores.error().message.find("position 301:"), std::string::npos) << scores.error().message;
  EXPECT_EQ(session.position(), 256u);
  must(session.score(std::span(tokens).subspan(256, bad - 256)));
}

}  // namespace
}  // namespace ds4
