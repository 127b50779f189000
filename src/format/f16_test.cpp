#include "format/f16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "format/bf16.hpp"

namespace ds4::format {
namespace {

// Every F16 by the definition of the format, in double precision.
TEST(F16, AllCodesDecodeToTheirValueAndBack) {
  for (unsigned code = 0; code < 65536; ++code) {
    const int exponent = static_cast<int>(code >> 10 & 31);
    const double mantissa = code & 1023;
    double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) value = mantissa == 0 ? INFINITY : NAN;
    if (code >> 15 != 0) value = -value;
    const float decoded = f16_to_f32(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(decoded)) << code;
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(decoded)))) << code;
      continue;
    }
    EXPECT_EQ(decoded, value) << code;
    EXPECT_EQ(std::signbit(decoded), code >> 15 != 0) << code;
    EXPECT_EQ(f32_to_f16(decoded), code);
  }
}

TEST(F16, RoundsToNearestEven) {
  // Midpoint of every two neighbours, and its two F32 neighbours.
  for (uint16_t code = 0; code < 0x7bff; ++code) {
    const float low = f16_to_f32(code), high = f16_to_f32(static_cast<uint16_t>(code + 1));
    const float middle = (low + high) / 2;  // exact in F32
    EXPECT_EQ(f32_to_f16(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, -1.0f)), code) << code;
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 1e9f)), code + 1) << code;
  }
}

TEST(F16, OverflowIsInfinity) {
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(f32_to_f16(1e-30f), 0);
}

TEST(F16, DotOfRow) {
  const float x[4] = {1, -2, 0.5f, 4}, y[4] = {2, 1, 8, -0.25f};
  std::byte row[8];
  encode_f16(x, 4, row);
  EXPECT_EQ(dot_f16(row, y, 4), 3.0f);
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  for (unsigned code = 0; code < 65536; ++code) {
    const float value = bf16_to_f32(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
    } else {
      EXPECT_EQ(f32_to_bf16(value), code);
    }
  }
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, even below
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, even above
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);  // rounds up to infinity
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Bf16, DotOfRow) {
  const float x[4] = {1, -2, 0.5f, 4}, y[4] = {2, 1, 8, -0.25f};
  std::byte row[8];
  encode_bf16(x, 4, row);
  EXPECT_EQ(dot_bf16(row, y, 4), 3.0f);
}

}  // namespace
}  // namespace ds4::format
