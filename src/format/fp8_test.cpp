#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "format/fp4_e2m1.hpp"
#include "format/fp4_row.hpp"
#include "format/fp8_e4m3.hpp"
#include "format/fp8_row.hpp"
#include "format/hadamard.hpp"
#include "format/mxfp4.hpp"

namespace ds4::format {
namespace {

TEST(Fp8E4m3, CodesAndTies) {
  for (unsigned code = 0; code < 256; ++code) {
    if ((code & 127) == 127) continue;
    EXPECT_EQ(f32_to_e4m3(e4m3_to_f32(static_cast<uint8_t>(code))), code);
  }
  for (unsigned code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_f32(static_cast<uint8_t>(code)),
                high = e4m3_to_f32(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(f32_to_e4m3(middle), code % 2 == 0 ? code : code + 1) << middle;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, -1.0f)), code) << middle;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, 1e9f)), code + 1) << middle;
  }
}

// Vectors of docs/model.md §15.
TEST(Fp8E4m3, Scalars) {
  const float pairs[][2] = {
      {0.0009765625f, 0}, {0.00146484375f, 0.001953125f}, {17, 16}, {19, 20}, {21, 20}, {447, 448},
      {460, 448},         {-0.0146484375f, -0.015625f}};
  for (const auto& [input, expected] : pairs) EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(input)), expected) << input;
  EXPECT_EQ(e8m0_to_f32(0), 0x1p-127f);
  EXPECT_EQ(e8m0_to_f32(1), 0x1p-126f);
  EXPECT_EQ(e8m0_to_f32(127), 1.0f);
  EXPECT_EQ(e8m0_to_f32(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(Fp8E4m3, CheckpointRowUsesTheScaleOfItsTile) {
  const size_t cols = 256;
  std::vector<std::byte> codes(256 * cols, std::byte{0x38});  // 1.0
  codes[130 * cols + 200] = std::byte{0xff};
  const std::byte scales[4] = {std::byte{127}, std::byte{128}, std::byte{129}, std::byte{126}};
  std::vector<float> out(cols);
  decode_fp8_e4m3(codes.data(), scales, 5, cols, out.data());
  EXPECT_EQ(out[127], 1.0f);
  EXPECT_EQ(out[128], 2.0f);
  decode_fp8_e4m3(codes.data(), scales, 130, cols, out.data());
  EXPECT_EQ(out[0], 4.0f);
  EXPECT_EQ(out[255], 0.5f);
  EXPECT_EQ(out[200], 0.0f);  // NaN code
}

TEST(Fp4E2m1, Thresholds) {
  const float pairs[][2] = {{0.25f, 0},    {0.26f, 0.5f}, {0.74f, 0.5f}, {0.75f, 1}, {1.25f, 1},
                            {1.26f, 1.5f}, {1.75f, 2},    {2.5f, 2},     {2.51f, 3}, {3.49f, 3},
                            {3.5f, 4},     {5, 4},        {5.01f, 6},    {100, 6}};
  for (const auto& [input, expected] : pairs) {
    EXPECT_EQ(e2m1_to_f32(f32_to_e2m1(input)), expected) << input;
    EXPECT_EQ(e2m1_to_f32(f32_to_e2m1(-input)), -expected) << input;
  }
  for (size_t code = 0; code < 16; ++code) EXPECT_EQ(2 * kE2m1Values[code], kE2m1Doubled[code]);
}

TEST(Fp4E2m1, RepackingKeepsEveryValue) {
  std::mt19937 random(1);
  const size_t elements = 256;
  std::vector<std::byte> codes(elements / 2), scales(elements / 32), blocks(elements / 32 * 17);
  for (auto& byte : codes) byte = static_cast<std::byte>(random());
  for (auto& byte : scales) byte = static_cast<std::byte>(random() % 255);
  std::vector<float> expected(elements), actual(elements);
  decode_fp4_e2m1(codes.data(), scales.data(), elements, expected.data());
  repack_fp4_e2m1_to_mxfp4(codes.data(), scales.data(), elements, blocks.data());
  decode_mxfp4(blocks.data(), elements, actual.data());
  EXPECT_EQ(actual, expected);
  EXPECT_EQ(expected[1],
            kE2m1Values[static_cast<size_t>(codes[0] >> 4)] * e8m0_to_f32(static_cast<uint8_t>(scales[0])));
}

// Vectors of docs/model.md §15.
TEST(Fp8Row, Vector) {
  float row[Fp8Row::kElements] = {};
  for (int i = 0; i < 64; ++i) row[i] = 0.1f * (static_cast<float>(i) - 31.5f);
  Fp8Row packed;
  encode_fp8_row(row, packed);
  EXPECT_EQ(packed.exponents[0], 127 - 7);
  EXPECT_EQ(e8m0_to_f32(packed.exponents[1]), 0x1p-22f);  // 1e-4 / 448 rounded up
  fp8_round_trip(row);
  const std::pair<int, float> expected[] = {{0, -3.25f},   {1, -3},         {10, -2.25f},
                                            {20, -1.125f}, {30, -0.15625f}, {31, -0.05078125f},
                                            {40, 0.875f},  {63, 3.25f}};
  for (const auto& [index, value] : expected) EXPECT_EQ(row[index], value) << index;
}

// A block with NaN is NaN, whichever way its codes are decoded; the others are what they would be without.
TEST(Fp8Row, NanStays) {
  std::vector<float> row(Fp8Row::kElements, 1.0f);
  row[100] = std::numeric_limits<float>::quiet_NaN();
  Fp8Row packed;
  encode_fp8_row(row.data(), packed);
  EXPECT_EQ(packed.exponents[1], 255);
  fp8_round_trip(row.data());
  for (size_t i = 0; i < row.size(); ++i) {
    const bool inside = i / Fp8Row::kBlock == 1;
    EXPECT_TRUE(inside ? std::isnan(row[i]) : row[i] == 1.0f) << i;
  }
}

TEST(Fp8Row, StoredValuesAreLossless) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const float magnitude : {1e-7f, 1e-3f, 1.0f, 3e4f, 1e30f}) {
    std::vector<float> row(Fp8Row::kElements), decoded(Fp8Row::kElements);
    for (float& x : row) x = magnitude * normal(random);
    const auto original = row;
    fp8_round_trip(row.data());
    Fp8Row packed;
    encode_fp8_row(row.data(), packed);
    decode_fp8_row(packed, decoded.data());
    EXPECT_EQ(decoded, row) << magnitude;
    for (size_t i = 0; i < row.size(); ++i) {
      EXPECT_LE(std::fabs(row[i] - original[i]), std::max(magnitude, 1e-4f) * 0.15f);
    }
  }
}

TEST(Fp4Row, Vector) {
  float row[Fp4Row::kElements] = {};
  for (int i = 0; i < 32; ++i) row[i] = 0.25f * (static_cast<float>(i) - 15.5f);
  Fp4Row packed;
  encode_fp4_row(row, packed);
  EXPECT_EQ(packed.exponents[0], 127);
  EXPECT_EQ(packed.exponents[1], 1);  // 2^-126
  fp4_round_trip(row);
  const float expected[32] = {-4,   -4, -3,    -3,    -3, -3, -2,   -2,   -2, -1.5f, -1.5f,
                              -1,   -1, -0.5f, -0.5f, 0,  0,  0.5f, 0.5f, 1,  1,     1.5f,
                              1.5f, 2,  2,     2,     3,  3,  3,    3,    4,  4};
  for (int i = 0; i < 32; ++i) EXPECT_EQ(row[i], expected[i]) << i;
}

TEST(Fp4Row, StoredValuesAreLossless) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const float magnitude : {1e-30f, 1.0f, 1e30f}) {
    std::vector<float> row(Fp4Row::kElements), decoded(Fp4Row::kElements);
    for (float& x : row) x = magnitude * normal(random);
    fp4_round_trip(row.data());
    Fp4Row packed;
    encode_fp4_row(row.data(), packed);
    decode_fp4_row(packed, decoded.data());
    EXPECT_EQ(decoded, row) << magnitude;
  }
}

TEST(Hadamard, Vector) {
  float x[kHadamardWidth];
  for (size_t i = 0; i < kHadamardWidth; ++i) x[i] = static_cast<float>(i);
  hadamard_128(x);
  for (size_t i = 0; i < kHadamardWidth; ++i) {
    const float expected = i == 0               ? 718.420490f
                           : (i & (i - 1)) == 0 ? -5.656854f * static_cast<float>(i)
                                                : 0.0f;
    EXPECT_NEAR(x[i], expected, 1e-4f) << i;
  }
  hadamard_128(x);
  for (size_t i = 0; i < kHadamardWidth; ++i) EXPECT_NEAR(x[i], static_cast<float>(i), 1e-4f);
}

}  // namespace
}  // namespace ds4::format
