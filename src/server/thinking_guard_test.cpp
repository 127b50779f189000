#include "server/thinking_guard.hpp"

#include <gtest/gtest.h>

namespace ds4::server {
namespace {

using Action = ThinkingGuard::Action;

/// How many tokens pass until a loop is seen; 0 if none is.
template <class TokenAt>
size_t tokens_until_loop(size_t tokens, const TokenAt& token_at) {
  LoopDetector detector;
  for (size_t i = 0; i < tokens; ++i) {
    if (detector.push(token_at(i))) return i + 1;
  }
  return 0;
}

TEST(LoopDetector, SeesPeriodsOfAnyLength) {
  EXPECT_EQ(tokens_until_loop(2000, [](size_t) { return 5; }), 256u);
  EXPECT_EQ(tokens_until_loop(2000, [](size_t i) { return static_cast<Token>(i % 32); }), 256u);
  EXPECT_EQ(tokens_until_loop(2000, [](size_t i) { return static_cast<Token>(i % 100); }), 800u);
  EXPECT_EQ(tokens_until_loop(2000, [](size_t i) { return static_cast<Token>(i % 128); }), 1024u);
  EXPECT_EQ(tokens_until_loop(3000, [](size_t i) { return static_cast<Token>(i % 129); }), 0u);
  EXPECT_EQ(tokens_until_loop(3000, [](size_t i) { return static_cast<Token>(i); }), 0u);
  // A list that grows is none.
  EXPECT_EQ(tokens_until_loop(3000, [](size_t i) { return static_cast<Token>(i % 20 == 0 ? i : i % 20); }),
            0u);
}

TEST(ThinkingGuard, NudgesOnceAtALineEndAndThenCloses) {
  ThinkingGuard guard(800);
  EXPECT_EQ(guard.free_tokens(), 700u);
  for (Token token = 1; token < 700; ++token) ASSERT_EQ(guard.accept(token, true), Action::none);
  EXPECT_EQ(guard.accept(700, false), Action::none);
  EXPECT_EQ(guard.free_tokens(), 100u);
  EXPECT_EQ(guard.accept(701, true), Action::nudge);
  for (Token token = 702; token < 800; ++token) ASSERT_EQ(guard.accept(token, true), Action::none);
  EXPECT_EQ(guard.free_tokens(), 1u);
  EXPECT_EQ(guard.accept(800, false), Action::close);
  EXPECT_FALSE(guard.looped());
}

TEST(ThinkingGuard, SmallBudgetsHaveNoNudge) {
  ThinkingGuard guard(3);
  EXPECT_EQ(guard.accept(1, true), Action::none);
  EXPECT_EQ(guard.accept(2, true), Action::none);
  EXPECT_EQ(guard.accept(3, true), Action::close);
}

TEST(ThinkingGuard, ClosesLoops) {
  ThinkingGuard guard(100000);
  size_t tokens = 1;
  while (guard.accept(9, false) == Action::none) ++tokens;
  EXPECT_EQ(tokens, 256u);
  EXPECT_TRUE(guard.looped());
}

}  // namespace
}  // namespace ds4::server
