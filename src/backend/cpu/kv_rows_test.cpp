#include "backend/cpu/kv_rows.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "format/f16.hpp"
#include "format/fp4_row.hpp"
#include "format/fp8_e4m3.hpp"
#include "format/fp8_row.hpp"
#include "format/hadamard.hpp"
#include "model/shape.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using test::for_every_target;
using test::random_floats;
using Bytes = std::vector<std::byte>;

uint32_t bits(float x) {
  uint32_t out;
  std::memcpy(&out, &x, sizeof(out));
  return out;
}

void expect_same_bits(const std::vector<float>& ours, const std::vector<float>& expected) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(bits(ours[i]), bits(expected[i])) << i << ": " << ours[i] << " " << expected[i];
  }
}

std::vector<float> attention_round_trip(const RowCodec& codec, const std::vector<float>& row) {
  Bytes packed(codec.attention_bytes());
  codec.encode_attention(row.data(), packed.data());
  std::vector<float> out(model::head_dim);
  codec.decode_attention(packed.data(), out.data());
  return out;
}

std::vector<float> expected_attention(std::vector<float> row) {
  format::fp8_round_trip(row.data());
  for (size_t i = model::nope_dim; i < row.size(); ++i) {
    row[i] = format::f16_to_f32(format::f32_to_f16(row[i]));
  }
  return row;
}

TEST(KvRows, PackedSizes) {
  EXPECT_EQ(RowCodec(true).attention_bytes(), 584u);
  EXPECT_EQ(RowCodec(true).index_bytes(), 68u);
  EXPECT_EQ(RowCodec(false).attention_bytes(), 2048u);
  EXPECT_EQ(RowCodec(false).index_bytes(), 512u);
}

TEST(KvRows, AttentionRowsHoldTheRoundedValues) {
  const RowCodec codec(true);
  for_every_target([&] {
    for (float deviation : {1e-9f, 1e-5f, 1e-3f, 1.0f, 50.0f, 1e4f}) {
      for (unsigned seed = 0; seed < 20; ++seed) {
        const std::vector<float> row = random_floats(model::head_dim, seed, deviation);
        expect_same_bits(attention_round_trip(codec, row), expected_attention(row));
      }
    }
  });
}

TEST(KvRows, BlocksHaveTheirOwnScales) {
  const RowCodec codec(true);
  std::vector<float> row = random_floats(model::head_dim, 1);
  for (size_t i = 0; i < row.size(); ++i) row[i] *= std::ldexp(1.0f, static_cast<int>(i / 64) * 4 - 16);
  for_every_target([&] { expect_same_bits(attention_round_trip(codec, row), expected_attention(row)); });
}

// Every finite code at every scale exponent a row can have.
TEST(KvRows, EveryCodeDecodesExactly) {
  const RowCodec codec(true);
  for_every_target([&] {
    for (unsigned exponent = 1; exponent < 254; ++exponent) {
      for (unsigned first = 0; first < 256; first += 128) {
        Bytes packed(584, std::byte{0});
        for (size_t i = 0; i < 448; ++i) {
          const unsigned code = first + i % 127;  // 127 is NaN
          packed[i] = static_cast<std::byte>(code);
        }
        for (size_t block = 0; block < 7; ++block) packed[448 + block] = static_cast<std::byte>(exponent);
        std::vector<float> out(model::head_dim);
        codec.decode_attention(packed.data(), out.data());
        for (size_t i = 0; i < 448; ++i) {
          const float expected = format::e4m3_to_f32(static_cast<uint8_t>(packed[i])) *
                                 format::e8m0_to_f32(static_cast<uint8_t>(exponent));
          ASSERT_EQ(bits(out[i]), bits(expected)) << exponent << " " << first + i % 127;
        }
      }
    }
  });
}

TEST(KvRows, TailIsF16) {
  const RowCodec codec(true);
  std::vector<float> row(model::head_dim, 0.0f);
  const float tail[] = {0.0f, -0.0f,    1.0f,     -1.0f,     1.0f + 0x1p-11f, 1.0f + 0x1.8p-10f, 65504.f,
                        1e6f, 0x1p-14f, 0x1p-24f, -0x1p-20f, 0x1p-26f,        3.14159265f};
  std::copy(std::begin(tail), std::end(tail), row.begin() + 448);
  for_every_target([&] { expect_same_bits(attention_round_trip(codec, row), expected_attention(row)); });
}

// Every F16 there is, infinities and NaNs included: the result may not depend on the instruction set.
TEST(KvRows, EveryTailDecodesExactly) {
  const RowCodec codec(true);
  for_every_target([&] {
    for (unsigned first = 0; first < 65536; first += 64) {
      Bytes packed(584, std::byte{0});
      for (unsigned i = 0; i < 64; ++i) {
        const auto half = static_cast<uint16_t>(first + i);
        std::memcpy(packed.data() + 456 + 2 * i, &half, 2);
      }
      std::vector<float> out(model::head_dim);
      codec.decode_attention(packed.data(), out.data());
      for (unsigned i = 0; i < 64; ++i) {
        ASSERT_EQ(bits(out[448 + i]), bits(format::f16_to_f32(static_cast<uint16_t>(first + i))))
            << first + i;
      }
    }
  });
}

// No byte of a packed row is left unwritten.
TEST(KvRows, PackedBytesDependOnTheValuesOnly) {
  const RowCodec codec(true);
  const std::vector<float> row = random_floats(model::head_dim, 2);
  Bytes a(584, std::byte{0xaa}), b(584, std::byte{0x55});
  codec.encode_attention(row.data(), a.data());
  codec.encode_attention(row.data(), b.data());
  EXPECT_EQ(a, b);
  EXPECT_EQ(a[455], std::byte{0});
  std::vector<float> index_row = random_floats(model::index_head_dim, 3), same = index_row;
  Bytes c(68, std::byte{0xaa}), d(68, std::byte{0x55});
  codec.encode_index(index_row.data(), c.data());
  codec.encode_index(same.data(), d.data());
  EXPECT_EQ(c, d);
}

TEST(KvRows, IndexRowsHoldTheRoundedValues) {
  const RowCodec codec(true);
  for (float deviation : {1e-30f, 1e-4f, 1.0f, 1e4f}) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      const std::vector<float> row = random_floats(model::index_head_dim, seed, deviation);
      std::vector<float> expected = row;
      format::hadamard_128(expected.data());
      format::fp4_round_trip(expected.data());
      Bytes packed(68);
      std::vector<float> scratch = row, out(model::index_head_dim), query = row;
      codec.encode_index(scratch.data(), packed.data());
      codec.decode_index(packed.data(), out.data());
      expect_same_bits(out, expected);
      codec.round_index_query(query.data());
      expect_same_bits(query, expected);
    }
  }
}

// What is stored is a fixed point: rounding it again changes nothing.
TEST(KvRows, StoringTwiceIsStoringOnce) {
  const RowCodec codec(true);
  for (unsigned seed = 0; seed < 50; ++seed) {
    const auto once = attention_round_trip(codec, random_floats(model::head_dim, seed, 3.0f));
    expect_same_bits(attention_round_trip(codec, once), once);
  }
}

TEST(KvRows, WithoutRoundTripsNothingChanges) {
  const RowCodec codec(false);
  const std::vector<float> row = random_floats(model::head_dim, 4);
  expect_same_bits(attention_round_trip(codec, row), row);
  const std::vector<float> index_row = random_floats(model::index_head_dim, 5);
  std::vector<float> scratch = index_row, out(model::index_head_dim), query = index_row;
  Bytes packed(codec.index_bytes());
  codec.encode_index(scratch.data(), packed.data());
  codec.decode_index(packed.data(), out.data());
  expect_same_bits(out, index_row);
  codec.round_index_query(query.data());
  expect_same_bits(query, index_row);
}

}  // namespace
}  // namespace ds4::cpu
