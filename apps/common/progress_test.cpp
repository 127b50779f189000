#include "common/progress.hpp"

#include <gtest/gtest.h>

namespace ds4::cli {
namespace {

TEST(Progress, LoadingTellsBytesAndRate) {
  constexpr uint64_t gib = uint64_t{1} << 30;
  EXPECT_EQ(load_text(gib + gib / 2, 6 * gib, std::chrono::milliseconds(500)),
            "loading weights: 1.50 GiB of 6.00 GiB (25.0%), 3.2 GB/s");
  EXPECT_EQ(load_text(0, 0, {}), "loading weights: 0 B of 0 B (100.0%)");
}

}  // namespace
}  // namespace ds4::cli
