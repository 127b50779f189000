#include "server/stop_matcher.hpp"

#include <gtest/gtest.h>

namespace ds4::server {
namespace {

TEST(StopMatcher, FindsAStringAtAnySplit) {
  const std::string text = "one STOP two", stop = "STOP";
  for (size_t a = 0; a <= text.size(); ++a) {
    for (size_t b = a; b <= text.size(); ++b) {
      StopMatcher matcher({stop});
      std::string shown = matcher.push(text.substr(0, a));
      shown += matcher.push(text.substr(a, b - a));
      shown += matcher.push(text.substr(b));
      shown += matcher.flush();
      EXPECT_EQ(shown, "one ");
      EXPECT_EQ(matcher.hit(), stop);
    }
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"abab", "xyz"});
  EXPECT_EQ(matcher.push("aba"), "");
  EXPECT_EQ(matcher.push("a"), "aba");  // the last one may begin a stop
  EXPECT_EQ(matcher.flush(), "a");
}

TEST(StopMatcher, TheFirstCountsAndOfThoseTheLongest) {
  StopMatcher matcher({"cd", "bc", "bcd"});
  EXPECT_EQ(matcher.push("abcd"), "a");
  EXPECT_EQ(matcher.hit(), "bcd");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, WithoutStopsNothingIsHeldBack) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_FALSE(matcher.hit());
}

}  // namespace
}  // namespace ds4::server
