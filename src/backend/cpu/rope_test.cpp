#include "backend/cpu/rope.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/cpu/reference.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using test::random_floats;
using test::widen;

std::vector<double> exact_angles(uint64_t position, const std::array<float, rope_pairs>& frequencies) {
  std::vector<double> angles;
  for (float f : frequencies) angles.push_back(static_cast<double>(position) * f);
  return angles;
}

TEST(Rope, FrequenciesOfLayersThatCompress) {
  struct Value {
    size_t pair;
    double frequency;
  };
  const auto frequencies = rope_frequencies(true);
  for (const Value& v : {Value{0, 1.0}, Value{1, 0.687656022}, Value{8, 0.05}, Value{15, 0.00363553858},
                         Value{16, 0.002265625}, Value{17, 0.00139680129}, Value{18, 0.000849689727},
                         Value{20, 0.000296977778}, Value{24, 1.953125e-05}, Value{25, 5.37231267e-06},
                         Value{31, 5.68052904e-07}}) {
    EXPECT_NEAR(frequencies[v.pair], v.frequency, 3e-7 * v.frequency) << v.pair;
  }
}

TEST(Rope, FrequenciesOfPlainLayers) {
  const auto frequencies = rope_frequencies(false);
  for (size_t i = 0; i < rope_pairs; ++i) {
    const double exact = std::pow(10000.0, -2.0 * static_cast<double>(i) / 64.0);
    EXPECT_NEAR(frequencies[i], exact, 3e-7 * exact) << i;
  }
}

// The angle is an F32 product, so its error grows with the position: half a step of the angle.
TEST(Rope, RotationUpToAMillion) {
  for (bool compressed : {false, true}) {
    const auto frequencies = rope_frequencies(compressed);
    for (uint64_t position : {0u, 1u, 127u, 128u, 4095u, 65535u, 65536u, 500000u, 999999u, 1000000u}) {
      const RopeAngles angles = rope_angles(position, frequencies);
      const std::vector<float> x = random_floats(model::rope_dim, static_cast<unsigned>(position));
      std::vector<double> exact = widen(x);
      const std::vector<double> wide_angles = exact_angles(position, frequencies);
      reference::rotate(exact.data(), wide_angles.data());
      std::vector<float> rotated = x;
      rotate(rotated.data(), angles);
      for (size_t i = 0; i < model::rope_dim; ++i) {
        const double length = std::hypot(x[i / 2 * 2], x[i / 2 * 2 + 1]);
        const double angle_error = wide_angles[i / 2] * 0x1p-24;
        ASSERT_NEAR(rotated[i], exact[i], length * (3e-7 + angle_error)) << position << " " << i;
      }
    }
  }
}

// Whatever the size of the angle, it is reduced exactly: the table is the cosine of the F32 angle.
TEST(Rope, LargeAnglesAreReducedExactly) {
  const auto frequencies = rope_frequencies(false);
  for (uint64_t position : {65537u, 1048575u}) {
    const RopeAngles angles = rope_angles(position, frequencies);
    for (size_t i = 0; i < rope_pairs; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      EXPECT_FLOAT_EQ(angles.cosine[i], static_cast<float>(std::cos(static_cast<double>(angle)))) << i;
      EXPECT_NEAR(std::hypot(angles.cosine[i], angles.sine[i]), 1.0, 1e-7) << i;
    }
  }
}

TEST(Rope, InverseUndoesTheRotation) {
  const auto frequencies = rope_frequencies(true);
  for (uint64_t position : {1u, 77u, 4096u, 1000000u}) {
    const RopeAngles angles = rope_angles(position, frequencies);
    const std::vector<float> x = random_floats(model::rope_dim, 3);
    std::vector<float> back = x;
    rotate_inverse(back.data(), angles);
    std::vector<double> exact = widen(x);
    reference::rotate(exact.data(), exact_angles(position, frequencies).data(), true);
    for (size_t i = 0; i < model::rope_dim; ++i) {
      const double angle_error = static_cast<double>(position) * frequencies[i / 2] * 0x1p-24;
      ASSERT_NEAR(back[i], exact[i], 5 * (3e-7 + angle_error)) << position << " " << i;
    }
    rotate(back.data(), angles);
    for (size_t i = 0; i < model::rope_dim; ++i) ASSERT_NEAR(back[i], x[i], 2e-6) << position << " " << i;
  }
}

TEST(Rope, PositionZeroChangesNothing) {
  const std::vector<float> x = random_floats(model::rope_dim, 4);
  std::vector<float> y = x;
  rotate(y.data(), rope_angles(0, rope_frequencies(true)));
  EXPECT_EQ(x, y);
}

// A product of two rotated rows depends on the distance of their positions only.
TEST(Rope, ProductsDependOnTheDistance) {
  const auto frequencies = rope_frequencies(true);
  const std::vector<float> a = random_floats(model::rope_dim, 5), b = random_floats(model::rope_dim, 6);
  const auto product = [&](uint64_t p, uint64_t q) {
    std::vector<float> x = a, y = b;
    rotate(x.data(), rope_angles(p, frequencies));
    rotate(y.data(), rope_angles(q, frequencies));
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(x[i]) * y[i];
    return sum;
  };
  EXPECT_NEAR(product(10, 3), product(1007, 1000), 1e-3);
  EXPECT_GT(std::fabs(product(10, 3) - product(10, 4)), 1e-2);
}

}  // namespace
}  // namespace ds4::cpu
