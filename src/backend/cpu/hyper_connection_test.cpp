#include "backend/cpu/hyper_connection.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/cpu/reference.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using test::random_floats;
using test::widen;

// Computed in double precision from the formulas of docs/model.md §4: mix_k = sin(k + 1), base_k = k / 100.
TEST(HyperConnection, CheckValues) {
  float mix[24], base[24];
  for (int k = 0; k < 24; ++k) {
    mix[k] = static_cast<float>(std::sin(k + 1.0));
    base[k] = static_cast<float>(0.01 * k);
  }
  const float scale[3] = {1.5f, 0.5f, 2.0f};
  const float pre[] = {0.779407f, 0.798018f, 0.557663f, 0.248767f};
  const float post[] = {0.783738f, 0.955176f, 1.191840f, 1.275069f};
  const float comb[] = {0.425759f, 0.202375f, 0.156912f, 0.214953f, 0.046034f, 0.463483f,
                        0.452876f, 0.037606f, 0.004850f, 0.023769f, 0.277982f, 0.693398f,
                        0.523356f, 0.310372f, 0.112230f, 0.054042f};
  const HyperConnection hc = split_mix(mix, scale, base);
  for (size_t h = 0; h < 4; ++h) {
    EXPECT_NEAR(hc.pre[h], pre[h], 1e-6) << h;
    EXPECT_NEAR(hc.post[h], post[h], 1e-6) << h;
  }
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(hc.comb[i], comb[i], 1e-6) << i;
}

TEST(HyperConnection, AgreesWithDoublePrecision) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const float deviation = seed % 5 == 0 ? 30.0f : 2.0f;
    const std::vector<float> mix = random_floats(24, 3 * seed, deviation),
                             base = random_floats(24, 3 * seed + 1), scale = random_floats(3, 3 * seed + 2);
    const HyperConnection ours = split_mix(mix.data(), scale.data(), base.data());
    const auto exact = reference::split_mix(widen(mix).data(), widen(scale).data(), widen(base).data());
    const auto head = split_head_mix(mix.data(), scale[0], base.data());
    for (size_t h = 0; h < 4; ++h) {
      ASSERT_NEAR(ours.pre[h], exact.pre[h], 1e-5 * exact.pre[h]) << seed;
      ASSERT_NEAR(ours.post[h], exact.post[h], 1e-5 * exact.post[h] + 1e-20) << seed;
      ASSERT_NEAR(head[h], exact.pre[h], 1e-5 * exact.pre[h]) << seed;
    }
    for (size_t i = 0; i < 16; ++i) ASSERT_NEAR(ours.comb[i], exact.comb[i], 2e-5) << seed << " " << i;
  }
}

// After the last column step every column sums to 1; rows nearly do.
TEST(HyperConnection, CombIsDoublyStochastic) {
  const std::vector<float> mix = random_floats(24, 77), base(24, 0.0f);
  const float scale[3] = {1, 1, 1};
  const HyperConnection hc = split_mix(mix.data(), scale, base.data());
  for (size_t k = 0; k < 4; ++k) {
    float column = 0, row = 0;
    for (size_t j = 0; j < 4; ++j) column += hc.comb[j * 4 + k], row += hc.comb[k * 4 + j];
    EXPECT_NEAR(column, 1.0f, 2e-6f);
    EXPECT_NEAR(row, 1.0f, 1e-3f);
  }
}

TEST(HyperConnection, ExtremeMixesStayFinite) {
  std::vector<float> mix(24), base(24, 0.0f);
  for (size_t k = 0; k < 24; ++k) mix[k] = k % 2 == 0 ? 1e30f : -1e30f;
  const float scale[3] = {1, 1, 1};
  const HyperConnection hc = split_mix(mix.data(), scale, base.data());
  for (float x : hc.pre) EXPECT_TRUE(x >= 1e-6f && x <= 1.00001f) << x;
  for (float x : hc.post) EXPECT_TRUE(x >= 0.0f && x <= 2.0f) << x;
  for (float x : hc.comb) EXPECT_TRUE(x >= 0.0f && x <= 1.0f) << x;
}

}  // namespace
}  // namespace ds4::cpu
