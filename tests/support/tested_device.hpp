// What a test program that is built twice computes on: the CPU, or with DS4_TEST_CUDA a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>

#include "backend/cuda/cuda_backend.hpp"
#include "ds4/engine.hpp"

namespace ds4::testing {

#ifdef DS4_TEST_CUDA
inline constexpr bool on_gpu = true;
#else
inline constexpr bool on_gpu = false;
#endif
inline constexpr BackendChoice tested_backend = on_gpu ? BackendChoice::cuda : BackendChoice::cpu;

/// Distance of a from b, relative to b.
inline double relative_l2(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

/// Skips its tests where there is no GPU to compute on.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (on_gpu && !cuda::available(&why)) GTEST_SKIP() << why;
  }
};

}  // namespace ds4::testing
