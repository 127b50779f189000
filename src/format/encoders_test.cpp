// The encoders that search scales: Q4_K, Q2_K, IQ2_XXS, MXFP4. Their bytes are compared with those of the
// reference procedures in tests/golden.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "format/f16.hpp"
#include "format/fp4_e2m1.hpp"
#include "format/iq2_xxs.hpp"
#include "format/iq2_xxs_codebook.hpp"
#include "format/iq2_xxs_tables.hpp"
#include "format/mxfp4.hpp"
#include "format/number_formats.hpp"
#include "format/q2_k.hpp"
#include "format/q4_k.hpp"

namespace ds4::format {
namespace {

using ::testing::HasSubstr;

constexpr TensorType kSearching[] = {TensorType::q4_k, TensorType::q2_k, TensorType::iq2_xxs,
                                     TensorType::mxfp4};
constexpr size_t kBlock = 256;  // a whole number of blocks of every type

std::vector<float> random_values(size_t count, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = scale * normal(random);
  return values;
}

std::vector<float> random_importance(size_t count, uint32_t seed) {
  std::vector<float> values = random_values(count, seed);
  for (float& value : values) value = value * value + 1e-3f;
  return prepare_importance(values).value();
}

std::vector<std::byte> encoded(TensorType type, std::span<const float> values, const float* importance) {
  std::vector<std::byte> bytes(row_bytes(type, values.size()));
  const auto result = encode_weighted_row(type, values.data(), values.size(), importance, bytes.data());
  EXPECT_TRUE(result) << result.error().message;
  return bytes;
}

std::vector<float> decoded(TensorType type, const std::vector<std::byte>& bytes, size_t count) {
  std::vector<float> values(count);
  decode_row(type, bytes.data(), count, values.data());
  return values;
}

double relative_error(std::span<const float> values, std::span<const float> others, const float* importance) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double weight = importance ? importance[i] : 1, difference = double{values[i]} - others[i];
    error += weight * difference * difference;
    energy += weight * values[i] * values[i];
  }
  return std::sqrt(error / energy);
}

TEST(Encoders, ABlockIsTheSameAtEveryPosition) {
  for (const TensorType type : kSearching) {
    for (const bool weighted : {false, true}) {
      if (!weighted && needs_importance(type)) continue;
      for (size_t blocks = 1; blocks <= 5; ++blocks) {
        const auto values = random_values(blocks * kBlock, static_cast<uint32_t>(blocks));
        const auto importance = random_importance(values.size(), 77);
        const auto whole = encoded(type, values, weighted ? importance.data() : nullptr);
        std::vector<std::byte> parts;
        for (size_t b = 0; b < blocks; ++b) {
          const auto part = encoded(type, std::span(values).subspan(b * kBlock, kBlock),
                                    weighted ? importance.data() + b * kBlock : nullptr);
          parts.insert(parts.end(), part.begin(), part.end());
        }
        EXPECT_EQ(whole, parts) << type_name(type) << " of " << blocks << " blocks";
      }
    }
  }
}

TEST(Encoders, OtherBlocksStayZero) {
  for (const TensorType type : kSearching) {
    for (size_t position = 0; position < 4; ++position) {
      std::vector<float> values(4 * kBlock, 0.0f);
      const auto some = random_values(kBlock, 9);
      std::copy(some.begin(), some.end(), values.begin() + static_cast<std::ptrdiff_t>(position * kBlock));
      const auto importance = random_importance(values.size(), 78);
      const auto out = decoded(type, encoded(type, values, importance.data()), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        if (i / kBlock == position) continue;
        EXPECT_EQ(out[i], 0) << type_name(type) << " " << i;
      }
      EXPECT_LT(relative_error(values, out, nullptr), 0.6) << type_name(type);
    }
  }
}

TEST(Encoders, ErrorsAreThoseOfTheFormats) {
  const auto values = random_values(16 * kBlock, 4, 0.02f);
  const auto importance = random_importance(values.size(), 5);
  const std::pair<TensorType, double> bounds[] = {{TensorType::q4_k, 0.075},
                                                  {TensorType::q2_k, 0.31},
                                                  {TensorType::iq2_xxs, 0.40},
                                                  {TensorType::mxfp4, 0.13}};
  for (const auto& [type, bound] : bounds) {
    const auto weighted = decoded(type, encoded(type, values, importance.data()), values.size());
    EXPECT_LT(relative_error(values, weighted, importance.data()), bound) << type_name(type);
    if (needs_importance(type)) continue;
    const auto plain = decoded(type, encoded(type, values, nullptr), values.size());
    EXPECT_LT(relative_error(values, plain, nullptr), bound) << type_name(type);
    EXPECT_LT(relative_error(values, weighted, importance.data()),
              relative_error(values, plain, importance.data()))
        << type_name(type) << ": importance must pay where it is asked for";
  }
}

TEST(Encoders, ZeroAndConstantBlocks) {
  for (const TensorType type : kSearching) {
    const std::vector<float> ones(kBlock, 1.0f);
    for (const float constant : {0.0f, -0.0f, 0.5f, -0.5f, 0.1f, 60000.0f}) {
      const std::vector<float> values(kBlock, constant);
      const auto out = decoded(type, encoded(type, values, ones.data()), kBlock);
      if (type == TensorType::iq2_xxs && constant != 0) {
        // No grid entry has the middle level throughout, and the search looks around the high ones.
        EXPECT_LT(relative_error(values, out, nullptr), 0.7);
        continue;
      }
      const double bound = type == TensorType::mxfp4 ? 0.2 : 1e-3;
      for (const float value : out)
        EXPECT_NEAR(value, constant, bound * std::fabs(constant)) << type_name(type);
    }
  }
}

TEST(Encoders, ExtremeValuesStayFinite) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float largest = largest_encodable(TensorType::q4_k);
  for (const TensorType type : kSearching) {
    const std::vector<float> ones(kBlock, 1.0f);
    std::vector<float> mixed = random_values(kBlock, 11);
    for (size_t i = 0; i < kBlock; i += 3) mixed[i] = (i % 2 == 0 ? largest : -largest);
    for (size_t i = 1; i < kBlock; i += 3) mixed[i] = 1e-30f;
    std::vector<float> one_spike(kBlock, 0.0f);
    one_spike[200] = -largest;
    std::vector<float> powers(kBlock);
    for (size_t i = 0; i < kBlock; ++i)
      powers[i] = std::ldexp(i % 2 == 0 ? 1.0f : -1.0f, -static_cast<int>(i) / 2);
    for (const auto& values : {std::vector<float>(kBlock, tiny), std::vector<float>(kBlock, -tiny), mixed,
                               one_spike, powers, random_values(kBlock, 12, 1e-12f)}) {
      auto importance = random_importance(kBlock, 13);
      for (const float* weights :
           {static_cast<const float*>(ones.data()), static_cast<const float*>(importance.data())}) {
        const auto out = decoded(type, encoded(type, values, weights), kBlock);
        for (size_t i = 0; i < kBlock; ++i) {
          ASSERT_TRUE(std::isfinite(out[i])) << type_name(type);
          ASSERT_LE(std::fabs(out[i]), 2 * largest) << type_name(type);
        }
      }
    }
    const auto out = decoded(type, encoded(type, one_spike, ones.data()), kBlock);
    EXPECT_NEAR(out[200], one_spike[200], 0.3 * largest) << type_name(type);
  }
}

TEST(Encoders, RefuseWhatTheyCannotHold) {
  for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q8_0,
                                TensorType::q4_k, TensorType::q2_k, TensorType::iq2_xxs, TensorType::mxfp4}) {
    std::vector<float> values = random_values(2 * kBlock, 1);
    const std::vector<float> ones(values.size(), 1.0f);
    std::vector<std::byte> bytes(row_bytes(type, values.size()));
    const auto encode = [&] {
      return encode_weighted_row(type, values.data(), values.size(), ones.data(), bytes.data());
    };
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
      values[300] = bad;
      const auto result = encode();
      ASSERT_FALSE(result) << type_name(type);
      EXPECT_EQ(result.error().code, ErrorCode::not_finite);
      EXPECT_THAT(result.error().message, HasSubstr("column 300"));
    }
    if (largest_encodable(type) < 1e30f) {
      values[300] = -1.01f * largest_encodable(type);
      const auto result = encode();
      ASSERT_FALSE(result) << type_name(type);
      EXPECT_EQ(result.error().code, ErrorCode::unsupported);
      EXPECT_THAT(result.error().message, HasSubstr(std::string(type_name(type))));
    }
    values[300] = largest_encodable(type);
    EXPECT_TRUE(encode()) << type_name(type);
    const auto out = decoded(type, bytes, values.size());
    for (const float value : out) ASSERT_TRUE(std::isfinite(value)) << type_name(type);
  }
  float row[64] = {};
  std::byte out[64];
  EXPECT_EQ(encode_weighted_row(TensorType::q4_k, row, 64, nullptr, out).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(encode_weighted_row(TensorType::i32, row, 64, nullptr, out).error().code,
            ErrorCode::invalid_argument);
  std::vector<float> values(kBlock);
  EXPECT_EQ(encode_weighted_row(TensorType::iq2_xxs, values.data(), kBlock, nullptr, out).error().code,
            ErrorCode::invalid_argument);
}

TEST(Importance, OnlyRatiosCount) {
  std::vector<float> raw = random_values(kBlock, 21);
  for (float& value : raw) value *= value;
  const auto values = random_values(kBlock, 22);
  const auto prepared = prepare_importance(raw).value();
  for (const float factor : {0x1p-60f, 0x1p-2f, 0x1p4f, 0x1p90f}) {
    std::vector<float> scaled = raw;
    for (float& value : scaled) value *= factor;
    EXPECT_EQ(prepare_importance(scaled).value(), prepared) << factor;
  }
  float largest = 0;
  for (const float value : prepared) largest = std::max(largest, value);
  EXPECT_GE(largest, 1);
  EXPECT_LT(largest, 4);
}

TEST(Importance, ColumnsThatWereNeverUsedKeepSomeWeight) {
  std::vector<float> raw(kBlock, 0.0f);
  EXPECT_EQ(prepare_importance(raw).value(), std::vector<float>(kBlock, 1.0f));
  raw[0] = 1e30f;
  const auto prepared = prepare_importance(raw).value();
  const auto values = random_values(kBlock, 23);
  for (const TensorType type : kSearching) {
    const auto out = decoded(type, encoded(type, values, prepared.data()), kBlock);
    // A group of columns without importance is still there.
    EXPECT_LT(relative_error(std::span(values).subspan(128), std::span(out).subspan(128), nullptr), 0.7)
        << type_name(type);
  }
}

TEST(Importance, RefusesWhatIsNoImportance) {
  for (const float bad : {-1.0f, std::nanf(""), INFINITY}) {
    const float raw[3] = {1, 2, bad};
    const auto result = prepare_importance(raw);
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message, HasSubstr("column 2"));
  }
}

TEST(Mxfp4Encoder, Vector) {
  // The largest magnitude 13 is in [4, 8) * 2, so the exponent is 128. Halves go to the smaller magnitude.
  float x[32] = {12, -12, 13, 1, -1, 0.5f, -0.5f, 0.6f, 5, -7, 10, 1.5f, -0.0f, 2.5f, 3, 8};
  x[16] = -2;
  x[31] = 7;
  const uint8_t expected[16] = {0xa7, 0x0f, 0x07, 0x01, 0x09, 0x00, 0x00, 0x01,
                                0x04, 0x0d, 0x06, 0x01, 0x00, 0x02, 0x03, 0x56};
  BlockMXFP4 block;
  encode_mxfp4(x, 32, nullptr, reinterpret_cast<std::byte*>(&block));
  EXPECT_EQ(block.exponent, 128);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(block.qs[i], expected[i]) << i;
}

// What FP4 with a power of two as scale holds is kept, though the exponent may be another one.
TEST(Mxfp4Encoder, LosesNothingOfFp4) {
  std::mt19937 random(31);
  for (int exponent = -120; exponent <= 120; exponent += 7) {
    for (unsigned largest = 0; largest < 8; ++largest) {
      float x[32], out[32];
      for (float& value : x)
        value = std::ldexp(kE2m1Values[random() % (largest + 1) + 8 * (random() & 1)], exponent);
      for (const float* importance : {static_cast<const float*>(nullptr), static_cast<const float*>(out)}) {
        std::fill_n(out, 32, 1.0f);
        BlockMXFP4 block;
        encode_mxfp4(x, 32, importance, reinterpret_cast<std::byte*>(&block));
        decode_mxfp4(reinterpret_cast<const std::byte*>(&block), 32, out);
        for (int i = 0; i < 32; ++i) ASSERT_EQ(out[i], x[i]) << exponent << " " << largest;
      }
    }
  }
}

TEST(Q4KEncoder, RecoversScalesMinimaAndCodes) {
  // Sub-block j holds every code twice, in steps of j + 1 from -j: the range decides both.
  std::vector<float> values(kBlock);
  for (size_t i = 0; i < kBlock; ++i) {
    const auto j = static_cast<float>(i / 32);
    values[i] = (j + 1) * static_cast<float>(i % 16) - 63 * j / 7;
  }
  const std::vector<float> ones(kBlock, 1.0f);
  for (const float* importance : {static_cast<const float*>(nullptr), ones.data()}) {
    const auto bytes = encoded(TensorType::q4_k, values, importance);
    BlockQ4_K block;
    std::memcpy(&block, bytes.data(), sizeof block);
    uint8_t scales[8], mins[8];
    unpack_q4_k_scales(block.scales, scales, mins);
    for (size_t j = 0; j < 8; ++j) {
      EXPECT_NEAR(scales[j], 63.0 * static_cast<double>(j + 1) / 8, 0.6) << j;
      EXPECT_NEAR(mins[j], 9 * static_cast<double>(j), 0.6) << j;
    }
    for (size_t i = 0; i < kBlock; ++i) {
      const uint8_t byte = block.qs[32 * (i / 64) + i % 32];
      EXPECT_EQ(i % 64 < 32 ? byte & 15 : byte >> 4, static_cast<int>(i % 16)) << i;
    }
  }
}

TEST(Q2KEncoder, RecoversScalesMinimaAndCodes) {
  std::vector<float> values(kBlock);
  for (size_t i = 0; i < kBlock; ++i) {
    const size_t g = i / 16;
    values[i] = static_cast<float>((g + 1) * ((i + i / 16) % 4)) - static_cast<float>(15 - g);
  }
  const std::vector<float> ones(kBlock, 1.0f);
  const auto bytes = encoded(TensorType::q2_k, values, ones.data());
  BlockQ2_K block;
  std::memcpy(&block, bytes.data(), sizeof block);
  for (size_t g = 0; g < 16; ++g) {
    EXPECT_NEAR(block.scales[g] & 15, 15.0 * static_cast<double>(g + 1) / 16, 0.6) << g;
    EXPECT_EQ(block.scales[g] >> 4, static_cast<int>(15 - g)) << g;
  }
  for (size_t i = 0; i < kBlock; ++i) {
    EXPECT_EQ(block.qs[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3,
              static_cast<int>((i + i / 16) % 4))
        << i;
  }
}

// What the format can hold exactly is found again: grid entries, signs and scale.
TEST(Iq2XxsEncoder, RecoversGridEntriesAndSigns) {
  std::mt19937 random(41);
  const std::vector<float> ones(kBlock, 1.0f);
  for (int round = 0; round < 64; ++round) {
    BlockIQ2_XXS block;
    block.d = f32_to_f16(0.25f);
    for (auto& group : block.groups) {
      for (uint8_t& entry : group.grid) entry = static_cast<uint8_t>(random());
      group.grid[0] = 255;  // a high level in every group, so that its scale is clear
      group.signs_and_scale = (random() & 0x0fffffffu) | 0xf0000000u;
    }
    std::vector<float> values(kBlock);
    decode_iq2_xxs(reinterpret_cast<const std::byte*>(&block), kBlock, values.data());
    const auto bytes = encoded(TensorType::iq2_xxs, values, ones.data());
    BlockIQ2_XXS again;
    std::memcpy(&again, bytes.data(), sizeof again);
    for (int b = 0; b < 8; ++b) {
      EXPECT_EQ(std::memcmp(block.groups[b].grid, again.groups[b].grid, 4), 0) << round << " " << b;
      EXPECT_EQ(block.groups[b].signs_and_scale & 0x0fffffffu, again.groups[b].signs_and_scale & 0x0fffffffu);
    }
    EXPECT_NEAR(f16_to_f32(again.d), 0.25f, 0.02f);
  }
}

TEST(Iq2XxsEncoder, ANumberOfNegativesThatIsOddCostsTheLeastElement) {
  std::vector<float> values(kBlock, 1.0f);
  const std::vector<float> ones(kBlock, 1.0f);
  values[9] = -1.0f;   // one negative in octet 1
  values[13] = 0.05f;  // the element whose sign is given up
  const auto out = decoded(TensorType::iq2_xxs, encoded(TensorType::iq2_xxs, values, ones.data()), kBlock);
  EXPECT_LT(out[9], 0);
  EXPECT_LT(out[13], 0);
  for (const size_t i : {8u, 10u, 11u, 12u, 14u, 15u}) EXPECT_GT(out[i], 0) << i;
}

TEST(Iq2XxsCodebook, NeighboursAreTheTwoNearestDistances) {
  const Iq2XxsCodebook& codebook = Iq2XxsCodebook::instance();
  size_t on_grid = 0;
  for (size_t octet = 0; octet < Iq2XxsCodebook::kOctets; ++octet) {
    if (codebook.index(octet) >= 0) {
      ++on_grid;
      continue;
    }
    const size_t count = codebook.neighbour_count(octet);
    ASSERT_GT(count, 0u);
    ASSERT_EQ(count % Iq2XxsCodebook::kPadding, 0u);
    int previous = 0, distances = 0;
    bool padding = false;
    for (size_t e = 0; e < count; ++e) {
      const unsigned levels = codebook.neighbours(octet)[e];
      int distance = 0;
      for (size_t i = 0, rest = octet; i < 8; ++i, rest /= 3) {
        const int difference = static_cast<int>(levels >> (2 * i) & 3) - static_cast<int>(rest % 3);
        distance += difference * difference;
      }
      padding |= e > 0 && levels == codebook.neighbours(octet)[0];
      if (padding) continue;
      ASSERT_GE(distance, previous) << octet;
      distances += distance > previous;
      previous = distance;
    }
    ASSERT_EQ(distances, 2) << octet;
  }
  EXPECT_EQ(on_grid, 256u);
}

}  // namespace
}  // namespace ds4::format
