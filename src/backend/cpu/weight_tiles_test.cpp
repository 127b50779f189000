#include "backend/cpu/weight_tiles.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "format/f16.hpp"
#include "format/number_formats.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using format::TensorType;
using test::for_every_target;

constexpr TensorType kCodeTypes[] = {TensorType::q8_0, TensorType::mxfp4, TensorType::q4_k, TensorType::q2_k,
                                     TensorType::iq2_xxs};

/// A row of random bytes with finite scales. The vector is exactly as long as the row, so that sanitizers see
/// a read beyond it; `shift` bytes precede the row.
std::vector<std::byte> random_row(TensorType type, size_t cols, size_t shift, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const size_t block = format::type_traits(type)->block_bytes;
  std::vector<std::byte> row(shift + format::row_bytes(type, cols));
  for (std::byte& byte : row) byte = static_cast<std::byte>(random());
  const auto put_half = [&](size_t at) {
    const uint16_t half = format::f32_to_f16(0.01f * normal(random));
    std::memcpy(&row[at], &half, 2);
  };
  for (size_t at = shift; at < row.size(); at += block) {
    if (type == TensorType::q8_0 || type == TensorType::iq2_xxs) put_half(at);
    if (type == TensorType::f16 || type == TensorType::bf16) put_half(at);
    if (type == TensorType::q4_k) put_half(at), put_half(at + 2);
    if (type == TensorType::q2_k) put_half(at + 80), put_half(at + 82);
  }
  if (type == TensorType::f32) {
    for (size_t at = shift; at < row.size(); at += 4) {
      const float value = normal(random);
      std::memcpy(&row[at], &value, 4);
    }
  }
  return row;
}

TEST(WeightTiles, CodesOfThePlainLoops) {
  for_every_target([] {
    for (const TensorType type : kCodeTypes) {
      for (const size_t cols : {32u, 96u, 256u, 352u, 768u, 4096u}) {
        if (cols % format::type_traits(type)->block_elements != 0) continue;
        const auto row = random_row(type, cols, 3, static_cast<unsigned>(cols));
        const size_t blocks = cols / 32;
        // One element more than the row has: it must stay as it is.
        std::vector<int8_t> codes[2];
        std::vector<float> floats[2][3];
        for (int i = 0; i < 2; ++i) {
          codes[i].assign(cols + 1, int8_t{77});
          for (auto& values : floats[i]) values.assign(blocks + 1, 77.0f);
        }
        const auto out = [&](int i) {
          return CodeRow{codes[i].data(), floats[i][0].data(), floats[i][1].data(), floats[i][2].data()};
        };
        decode_row_codes_plain(type, row.data() + 3, cols, out(0));
        decode_row_codes(type, row.data() + 3, cols, out(1));
        EXPECT_EQ(codes[0], codes[1]) << format::type_name(type) << " " << cols;
        for (int kind = 0; kind < 3; ++kind) {
          for (size_t b = 0; b <= blocks; ++b) {
            const float plain = floats[0][kind][b], fast = floats[1][kind][b];
            ASSERT_TRUE(plain == fast || (std::isnan(plain) && std::isnan(fast)))
                << format::type_name(type) << " cols " << cols << " kind " << kind << " block " << b << ": "
                << fast << " instead of " << plain;
          }
        }
      }
    }
  });
}

TEST(WeightTiles, FloatsOfTheFormats) {
  constexpr TensorType types[] = {TensorType::q8_0,    TensorType::mxfp4, TensorType::q4_k, TensorType::q2_k,
                                  TensorType::iq2_xxs, TensorType::f16,   TensorType::bf16, TensorType::f32};
  for_every_target([&] {
    for (const TensorType type : types) {
      for (const size_t cols : {32u, 96u, 256u, 352u, 1280u}) {
        if (cols % format::type_traits(type)->block_elements != 0) continue;
        const auto row = random_row(type, cols, 4, static_cast<unsigned>(cols));
        std::vector<float> plain(cols), fast(cols + 1, 77.0f);
        format::decode_row(type, row.data() + 4, cols, plain.data());
        decode_row_f32(type, row.data() + 4, cols, fast.data());
        EXPECT_EQ(fast[cols], 77.0f);
        for (size_t c = 0; c < cols; ++c) {
          const bool same = std::memcmp(&plain[c], &fast[c], sizeof(float)) == 0;
          const bool both_nan = std::isnan(plain[c]) && std::isnan(fast[c]);
          const bool zero = type == TensorType::mxfp4 && plain[c] == 0 && fast[c] == 0;
          ASSERT_TRUE(same || both_nan || zero) << format::type_name(type) << " cols " << cols << " column "
                                                << c << ": " << fast[c] << " instead of " << plain[c];
        }
      }
    }
  });
}

}  // namespace
}  // namespace ds4::cpu
