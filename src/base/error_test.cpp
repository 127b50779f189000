#include "base/error.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/quote.hpp"

namespace ds4 {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return fail(ErrorCode::invalid_argument, "{} is odd", value);
  return value / 2;
}

Result<int> quarter(int value) {
  DS4_ASSIGN(const int first, half(value));
  DS4_ASSIGN(const int second, half(first));
  return second;
}

Result<void> check_even(int value) {
  DS4_TRY(half(value));
  return {};
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good = half(8);
  ASSERT_TRUE(good);
  EXPECT_EQ(*good, 4);
  EXPECT_EQ(good.value_or(7), 4);
  const Result<int> bad = half(3);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(bad.error().message, "3 is odd");
  EXPECT_EQ(bad.value_or(7), 7);
}

TEST(Result, MacrosPassTheFirstErrorOn) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(7).error().message, "7 is odd");
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_TRUE(check_even(2));
  EXPECT_EQ(check_even(5).error().message, "5 is odd");
}

TEST(Result, MovesValuesThatCannotBeCopied) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  const auto use = [&]() -> Result<int> {
    DS4_ASSIGN(const std::unique_ptr<int> value, make());
    return *value;
  };
  EXPECT_EQ(*use(), 5);
}

TEST(Quote, KeepsPrintableTextAndEscapesTheRest) {
  EXPECT_EQ(quote("blk.0.attn_norm.weight"), "\"blk.0.attn_norm.weight\"");
  EXPECT_EQ(quote(""), "\"\"");
  EXPECT_EQ(quote("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(quote(std::string_view("a\n\0\x1b\xff", 5)), "\"a\\x0a\\x00\\x1b\\xff\"");
}

TEST(Quote, CutsLongText) {
  EXPECT_EQ(quote(std::string(80, 'x')), '"' + std::string(80, 'x') + '"');
  EXPECT_EQ(quote(std::string(1'000'000, 'x')), '"' + std::string(80, 'x') + "...\"");
}

}  // namespace
}  // namespace ds4
