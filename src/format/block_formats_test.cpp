#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "format/f16.hpp"
#include "format/iq2_xxs.hpp"
#include "format/iq2_xxs_tables.hpp"
#include "format/mxfp4.hpp"
#include "format/number_formats.hpp"
#include "format/q2_k.hpp"
#include "format/q4_k.hpp"
#include "format/q8_0.hpp"

namespace ds4::format {
namespace {

template <class Entries>
uint64_t fnv1a64(const Entries& entries) {
  uint64_t hash = 1469598103934665603u;
  for (const auto entry : entries) {
    for (size_t byte = 0; byte < sizeof entry; ++byte) {
      hash = (hash ^ (uint64_t{entry} >> (8 * byte) & 255)) * 1099511628211u;
    }
  }
  return hash;
}

TEST(Iq2XxsTables, Integrity) {
  EXPECT_EQ(fnv1a64(kIq2XxsGrid), 0x5bd45ef8a547a7e8u);
  EXPECT_EQ(fnv1a64(kIq2XxsSigns), 0x100b4e510a867c83u);
  for (unsigned n = 0; n < 128; ++n) {
    EXPECT_EQ(kIq2XxsSigns[n] & 127u, n);
    EXPECT_EQ(std::popcount(kIq2XxsSigns[n]) % 2, 0);
  }
}

// Hand-checked group of docs/formats.md.
TEST(Iq2Xxs, Vector) {
  BlockIQ2_XXS block{};
  block.d = f32_to_f16(0.125f);
  const uint8_t bytes[8] = {0x00, 0x01, 0xff, 0x25, 0x01, 0xc1, 0x1f, 0x58};
  std::memcpy(&block.groups[0], bytes, 8);
  float out[256];
  decode_iq2_xxs(reinterpret_cast<const std::byte*>(&block), 256, out);
  const float expected[32] = {
      -1.375f,   1.375f,     1.375f,  1.375f,    1.375f,     1.375f,     1.375f,     -1.375f,     //
      7.390625f, -1.375f,    1.375f,  1.375f,    1.375f,     1.375f,     1.375f,     -1.375f,     //
      -1.375f,   -4.296875f, -1.375f, -1.375f,   -4.296875f, -7.390625f, -7.390625f, -7.390625f,  //
      1.375f,    1.375f,     1.375f,  4.296875f, 1.375f,     4.296875f,  -1.375f,    -1.375f};
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], expected[i]) << i;
  EXPECT_EQ(out[32], 8 * 0.125f * 0.125f);  // an all-zero group: entry 0, no signs, s = 0
}

TEST(Q4K, ScaleVector) {
  const uint8_t packed[12] = {0x11, 0x52, 0x93, 0xd4, 0x25, 0x66, 0xa7, 0xe8, 0x9a, 0xbc, 0xde, 0xf1};
  const uint8_t expected_scales[8] = {17, 18, 19, 20, 10, 28, 46, 49};
  const uint8_t expected_mins[8] = {37, 38, 39, 40, 9, 27, 45, 63};
  uint8_t scales[8], mins[8];
  unpack_q4_k_scales(packed, scales, mins);
  for (int j = 0; j < 8; ++j) {
    EXPECT_EQ(scales[j], expected_scales[j]) << j;
    EXPECT_EQ(mins[j], expected_mins[j]) << j;
  }
}

TEST(Q4K, ElementOrder) {
  BlockQ4_K block{};
  block.d = f32_to_f16(2.0f);
  block.dmin = f32_to_f16(0.5f);
  for (int j = 0; j < 4; ++j) block.scales[j] = static_cast<uint8_t>(j + 1), block.scales[j + 4] = 3;
  block.qs[32 + 5] = 0x7c;  // elements 69 (12) and 101 (7)
  float out[256];
  decode_q4_k(reinterpret_cast<const std::byte*>(&block), 256, out);
  EXPECT_EQ(out[69], 2.0f * 3 * 12 - 0.5f * 3);
  EXPECT_EQ(out[101], 2.0f * 4 * 7 - 0.5f * 3);
  EXPECT_EQ(out[70], -1.5f);
  EXPECT_EQ(out[200], 0.0f);
}

TEST(Q2K, ElementOrder) {
  BlockQ2_K block{};
  block.d = f32_to_f16(0.5f);
  block.dmin = f32_to_f16(0.25f);
  for (int g = 0; g < 16; ++g) block.scales[g] = static_cast<uint8_t>(g | (15 - g) << 4);
  block.qs[32 + 20] = 0xe4;  // elements 128 + 20 + 32 j hold j
  float out[256];
  decode_q2_k(reinterpret_cast<const std::byte*>(&block), 256, out);
  for (int j = 0; j < 4; ++j) {
    const int element = 148 + 32 * j, g = element / 16;
    EXPECT_EQ(out[element], 0.5f * static_cast<float>(g * j) - 0.25f * static_cast<float>(15 - g)) << j;
  }
  EXPECT_EQ(out[0], -0.25f * 15);
}

TEST(Mxfp4, ElementOrder) {
  BlockMXFP4 block{};
  block.exponent = 128;
  block.qs[3] = 0x9f;  // element 3: -6, element 19: -0.5
  float out[32];
  decode_mxfp4(reinterpret_cast<const std::byte*>(&block), 32, out);
  EXPECT_EQ(out[3], -12.0f);
  EXPECT_EQ(out[19], -1.0f);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(mxfp4_doubled_scale(0), 0x1p-128f);
  EXPECT_EQ(mxfp4_doubled_scale(128), 1.0f);
}

TEST(Q8_0, TwoRoundings) {
  float x[32] = {127.0f, 0.5f, 1.5f, -0.5f, -2.5f, 2.4f};
  BlockQ8_0 block;
  encode_q8_0(x, 32, reinterpret_cast<std::byte*>(&block));
  ActivationQ8_0 activation;
  quantize_activations_q8_0(x, 32, &activation);
  const int away[6] = {127, 1, 2, -1, -3, 2}, even[6] = {127, 0, 2, 0, -2, 2};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(block.q[i], away[i]) << i;
    EXPECT_EQ(activation.q[i], even[i]) << i;
  }
  EXPECT_EQ(f16_to_f32(block.d), 1.0f);
  EXPECT_EQ(activation.d, 1.0f);
  float tiny[32] = {1e-44f};  // the scale underflows to zero
  quantize_activations_q8_0(tiny, 32, &activation);
  EXPECT_EQ(activation.q[0], 0);
}

TEST(Q8K, Vector) {
  float x[256] = {1, -2, 0.5f};
  x[17] = 1.99f;
  BlockQ8_K block;
  quantize_activations_q8_k(x, 256, &block);
  EXPECT_EQ(block.q[0], 64);  // 63.5 to even
  EXPECT_EQ(block.q[1], -127);
  EXPECT_EQ(block.q[2], 32);
  EXPECT_EQ(block.q[17], 126);
  EXPECT_EQ(block.d, 1.0f / 63.5f);
  EXPECT_EQ(block.sums[0], 64 - 127 + 32);
  EXPECT_EQ(block.sums[1], 126);
  const float zeros[256] = {};
  quantize_activations_q8_k(zeros, 256, &block);
  EXPECT_EQ(block.d, 0.0f);
  EXPECT_EQ(block.q[1], 0);
}

/// Bytes of a random row whose F16 scales are small finite numbers.
std::vector<std::byte> random_row(TensorType type, size_t elements, std::mt19937& random) {
  std::vector<std::byte> row(row_bytes(type, elements));
  for (auto& byte : row) byte = static_cast<std::byte>(random());
  const size_t block = type_traits(type)->block_bytes;
  for (size_t at = 0; at < row.size(); at += block) {
    const auto put_scale = [&](size_t offset) {
      const uint16_t half = f32_to_f16(0.01f + 0.001f * static_cast<float>(random() % 16));
      std::memcpy(row.data() + at + offset, &half, 2);
    };
    if (type == TensorType::mxfp4) row[at] = static_cast<std::byte>(120 + random() % 10);
    if (type == TensorType::q2_k) put_scale(80), put_scale(82);
    if (type == TensorType::q4_k) put_scale(0), put_scale(2);
    if (type == TensorType::q8_0 || type == TensorType::iq2_xxs) put_scale(0);
  }
  return row;
}

// The integer dot product equals the one of the decoded values with the rounded activations.
TEST(BlockFormats, DotAgreesWithDecodedValues) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  const size_t elements = 1024;
  for (const TensorType type :
       {TensorType::q8_0, TensorType::mxfp4, TensorType::q4_k, TensorType::q2_k, TensorType::iq2_xxs}) {
    const auto row = random_row(type, elements, random);
    std::vector<float> weights(elements), x(elements);
    decode_row(type, row.data(), elements, weights.data());
    for (float& value : x) value = normal(random);
    std::vector<ActivationQ8_0> small(elements / 32);
    std::vector<BlockQ8_K> large(elements / 256);
    quantize_activations_q8_0(x.data(), elements, small.data());
    quantize_activations_q8_k(x.data(), elements, large.data());
    const bool blocks_of_32 = type == TensorType::q8_0 || type == TensorType::mxfp4;
    double expected = 0, magnitude = 0;
    for (size_t i = 0; i < elements; ++i) {
      const double rounded = blocks_of_32 ? double{small[i / 32].d} * small[i / 32].q[i % 32]
                                          : double{large[i / 256].d} * large[i / 256].q[i % 256];
      expected += weights[i] * rounded;
      magnitude += std::fabs(weights[i] * rounded);
    }
    float actual = 0;
    if (type == TensorType::q8_0) actual = dot_q8_0(row.data(), small.data(), elements);
    if (type == TensorType::mxfp4) actual = dot_mxfp4(row.data(), small.data(), elements);
    if (type == TensorType::q4_k) actual = dot_q4_k(row.data(), large.data(), elements);
    if (type == TensorType::q2_k) actual = dot_q2_k(row.data(), large.data(), elements);
    if (type == TensorType::iq2_xxs) actual = dot_iq2_xxs(row.data(), large.data(), elements);
    EXPECT_NEAR(actual, expected, 1e-6 * magnitude) << type_name(type);
  }
}

TEST(NumberFormats, EncodeThenDecode) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(256), decoded(256);
  for (float& value : x) value = normal(random);
  const std::pair<TensorType, float> bounds[] = {{TensorType::f32, 0.0f},
                                                 {TensorType::f16, 1e-3f},
                                                 {TensorType::bf16, 8e-3f},
                                                 {TensorType::q8_0, 1.5e-2f}};
  for (const auto& [type, bound] : bounds) {
    std::vector<std::byte> row(row_bytes(type, x.size()));
    encode_row(type, x.data(), x.size(), row.data());
    decode_row(type, row.data(), x.size(), decoded.data());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(decoded[i], x[i], bound * std::max(1.0f, std::fabs(x[i]))) << type_name(type);
    }
  }
}

}  // namespace
}  // namespace ds4::format
