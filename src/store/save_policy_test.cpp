#include "store/save_policy.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ds4::store {
namespace {

const SpecialTokens special{.bos = 0, .eos = 1, .user = 2, .assistant = 3};

std::vector<Token> prompt_with(size_t length, std::vector<std::pair<size_t, Token>> marks) {
  std::vector<Token> tokens(length, 50);
  for (const auto& [at, token] : marks) tokens[at] = token;
  return tokens;
}

TEST(SavePolicy, TrimsAndAlignsWhereEnoughIsLeft) {
  const SavePolicy policy;
  EXPECT_EQ(store_len(policy, 11011), 10240u);
  EXPECT_EQ(store_len(policy, 1695), 1695u);
  EXPECT_EQ(store_len(policy, 2600), 2048u);
  EXPECT_EQ(store_len(policy, 2079), 2079u);  // 32 fewer are below 2048
  EXPECT_EQ(store_len(policy, 2080), 2048u);
  EXPECT_EQ(store_len(policy, 544), 544u);
  EXPECT_EQ(store_len({.boundary_align_tokens = 0}, 600), 568u);
  EXPECT_EQ(store_len({.min_tokens = UINT64_MAX}, 5), 5u);
}

TEST(SavePolicy, AnchorsBeforeTheFirstQuestion) {
  const SavePolicy policy;
  EXPECT_EQ(chat_anchor(policy, special, prompt_with(2000, {{0, 0}, {700, 2}, {720, 3}, {800, 2}, {900, 3}})),
            700u);
  EXPECT_EQ(chat_anchor(policy, special, prompt_with(2000, {{600, 2}, {700, 2}, {720, 3}})), 700u)
      << "the last of several before the first answer";
  EXPECT_EQ(chat_anchor(policy, special, prompt_with(2000, {{600, 2}, {700, 2}})), 700u);
  EXPECT_EQ(chat_anchor(policy, special, prompt_with(2000, {{511, 2}, {720, 3}})), std::nullopt);
  EXPECT_EQ(chat_anchor(policy, special, prompt_with(2000, {{512, 2}, {720, 3}})), 512u);
  EXPECT_EQ(chat_anchor(policy, special, prompt_with(2000, {{720, 3}, {800, 2}})), std::nullopt);
  EXPECT_EQ(chat_anchor(policy, special, {}), std::nullopt);
}

TEST(SavePolicy, ColdPromptsWithinTheBounds) {
  const SavePolicy policy;
  EXPECT_EQ(cold_target(policy, special, prompt_with(11011, {})), 10240u);
  EXPECT_EQ(cold_target(policy, special, prompt_with(11011, {{900, 2}, {1000, 3}})), 900u);
  EXPECT_EQ(cold_target(policy, special, prompt_with(511, {})), std::nullopt);
  EXPECT_EQ(cold_target(policy, special, prompt_with(30001, {})), std::nullopt);
  EXPECT_EQ(cold_target({.cold_max_tokens = 0}, special, prompt_with(600, {})), std::nullopt);
}

TEST(SavePolicy, TheIntervalIsRoundedUp) {
  EXPECT_EQ(continued_step({}), 10240u);
  EXPECT_EQ(continued_step({.boundary_align_tokens = 0}), 10000u);
  EXPECT_EQ(continued_step({.continued_interval_tokens = 0}), 0u);
}

TEST(SavePolicy, NamesWhatDoesNotGoTogether) {
  EXPECT_EQ(check(SavePolicy{}), nullptr);
  EXPECT_NE(check(SavePolicy{.min_tokens = 0}), nullptr);
  EXPECT_NE(check(SavePolicy{.cold_max_tokens = 100}), nullptr);
  EXPECT_EQ(check(SavePolicy{.cold_max_tokens = 0}), nullptr);
}

}  // namespace
}  // namespace ds4::store
