#include "common/model_run.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace ds4::cli {
namespace {

TEST(CheckLogits, OneFiniteLogitIsEnough) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(check_logits(std::vector<float>{nan, -infinity, 0}));
  EXPECT_FALSE(check_logits(std::vector<float>{nan, -infinity, infinity}));
  EXPECT_FALSE(check_logits({}));
}

}  // namespace
}  // namespace ds4::cli
