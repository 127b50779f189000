// Helpers of the kernel tests: random values, and a run for every instruction set of this machine.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace ds4::test {

inline std::vector<float> random_floats(size_t n, unsigned seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

inline std::vector<double> widen(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// Runs `check` once for each instruction set that was compiled and that the processor has.
template <class Check>
void for_every_target(Check check) {
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  ASSERT_NE(supported, 0);
  for (int64_t left = supported; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace ds4::test
