// Choosing among some tokens is choosing from logits in which the others are -infinity.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "ds4/engine.hpp"
#include "support/session_checks.hpp"

namespace ds4 {
namespace {

using testing::logits_of;
using testing::must;
using testing::random_tokens;

constexpr size_t vocabulary = 4096;

std::vector<uint64_t> words(const std::set<Token>& tokens) {
  std::vector<uint64_t> bits(vocabulary / 64);
  for (const Token token : tokens) bits[static_cast<size_t>(token / 64)] |= uint64_t{1} << (token % 64);
  return bits;
}

class AllowedTokensTest : public ::testing::Test {
 protected:
  AllowedTokensTest() {
    must(session.sync(random_tokens(40, 1)));
    logits = logits_of(session);
  }

  static Engine open() {
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = BackendChoice::cpu;
    options.threads = 2;
    return must(Engine::open(options));
  }

  std::vector<float> masked(const std::set<Token>& allowed) const {
    std::vector<float> values(vocabulary, -std::numeric_limits<float>::infinity());
    for (const Token token : allowed) values[static_cast<size_t>(token)] = logits[static_cast<size_t>(token)];
    return values;
  }

  const Engine engine = open();
  Session session = must(engine.create_session(100));
  std::vector<float> logits;
};

const SamplingParams all_params[] = {{.temperature = 0},
                                     {.temperature = 1},
                                     {.temperature = 30, .min_p = 0},
                                     {.temperature = 5, .top_k = 20, .min_p = 0},
                                     {.temperature = 30, .top_k = 50, .top_p = 0.7f, .min_p = 0.01f},
                                     {.temperature = 10, .top_p = 0.9f, .min_p = 0}};

TEST_F(AllowedTokensTest, SameAsFromMaskedLogits) {
  std::set<Token> few{0, 63, 64, 127, 4095}, many, all;
  for (Token token = 0; token < static_cast<Token>(vocabulary); ++token) {
    all.insert(token);
    if (token % 3 == 1) many.insert(token);
  }
  for (const auto& allowed : {few, many, all, std::set<Token>{2048}}) {
    for (const SamplingParams& params : all_params) {
      Rng rng(11), same(11);
      std::set<Token> seen;
      for (int draw = 0; draw < 50; ++draw) {
        const Token token = must(session.sample(params, rng, words(allowed)));
        ASSERT_EQ(token, sample(masked(allowed), params, same));
        ASSERT_EQ(rng.state(), same.state());
        ASSERT_TRUE(allowed.contains(token));
        seen.insert(token);
      }
      const bool spread = params.temperature >= 10 && allowed.size() > 5;
      EXPECT_GE(seen.size(), spread ? 6u : 1u);
    }
  }
  EXPECT_EQ(logits_of(session), logits);
}

TEST_F(AllowedTokensTest, WithoutRestrictionTheChoiceIsThatOfSample) {
  const std::vector<uint64_t> all(vocabulary / 64, ~uint64_t{0});
  for (const SamplingParams& params : all_params) {
    Rng rng(3), same(3);
    for (int draw = 0; draw < 20; ++draw) {
      EXPECT_EQ(must(session.sample(params, rng, all)), must(session.sample(params, same)));
    }
    EXPECT_EQ(rng.state(), same.state());
  }
}

TEST_F(AllowedTokensTest, Errors) {
  Rng rng(5);
  const auto code = [&](const Session& from, const std::vector<uint64_t>& bits) {
    const auto result = from.sample({}, rng, bits);
    return result ? ErrorCode::internal : result.error().code;
  };
  EXPECT_EQ(code(session, std::vector<uint64_t>(vocabulary / 64)), ErrorCode::invalid_argument);
  EXPECT_EQ(code(session, std::vector<uint64_t>(vocabulary / 64 - 1, 1)), ErrorCode::invalid_argument);
  EXPECT_EQ(code(session, std::vector<uint64_t>(vocabulary / 64 + 1, 1)), ErrorCode::invalid_argument);
  EXPECT_EQ(code(session, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(code(must(engine.create_session(100)), words({1})), ErrorCode::invalid_argument);
  EXPECT_EQ(rng.state(), 5u);
}

}  // namespace
}  // namespace ds4
