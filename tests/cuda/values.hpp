// Random values and distances between results, for the tests of kernels.
#pragma once

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace ds4::cuda {

/// The relative error of one F32 operation.
inline constexpr double f32_rounding = 0x1p-24;

inline std::vector<float> normal_values(size_t count, float spread, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = spread * normal(random);
  return values;
}

inline std::vector<double> wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

inline double relative_l2(const std::vector<double>& expected, const std::vector<double>& got) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace ds4::cuda
