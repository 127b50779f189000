// The device row codec against format/fp8_row and format/fp4_row, bit for bit.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device_copy.hpp"
#include "format/f16.hpp"
#include "format/fp4_e2m1.hpp"
#include "format/fp4_row.hpp"
#include "format/fp8_e4m3.hpp"
#include "format/fp8_row.hpp"
#include "format/hadamard.hpp"
#include "row_codec_kernels.hpp"

namespace ds4::cuda {
namespace {

class RowCodecTest : public DeviceTest {};

// Rows of many magnitudes, and rows made of the values where rounding turns.
std::vector<float> hard_rows(size_t width, bool not_finite) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> rows;
  for (int exponent :
       {-140, -126, -60, -30, -22, -15, -14, -10, -9, -5, 0, 0, 0, 0, 1, 3, 7, 8, 20, 60, 100}) {
    for (size_t i = 0; i < width; ++i) rows.push_back(std::ldexp(normal(random), exponent));
  }
  std::vector<float> edges = {0.0f,   -0.0f,   1e-4f, -1e-4f,   9.9e-5f,  448.0f,  449.0f,
                              464.0f, -480.0f, 6.0f,  5.0f,     3.5f,     2.5f,    1.75f,
                              1.25f,  0.75f,   0.25f, 65504.0f, 65519.9f, 65520.0f};
  for (int code = 0; code < 127; ++code) {  // halfway between neighbours, and next to it
    const float half = 0.5f * (format::e4m3_to_f32(static_cast<uint8_t>(code)) +
                               (code == 126 ? 512.0f : format::e4m3_to_f32(static_cast<uint8_t>(code + 1))));
    for (float x : {half, std::nextafter(half, 0.0f), std::nextafter(half, 1e9f)}) edges.push_back(x);
  }
  for (int row = 0; row < 40; ++row) {
    for (size_t i = 0; i < width; ++i) {
      const float x = edges[random() % edges.size()];
      rows.push_back(std::ldexp(random() % 2 ? x : -x, row < 20 ? 0 : static_cast<int>(random() % 20) - 10));
    }
  }
  rows.insert(rows.end(), width, 0.0f);
  if (not_finite) {
    for (size_t i = 0; i < width; ++i) {
      rows.push_back(i % 70 == 3 ? -std::numeric_limits<float>::infinity() : static_cast<float>(i));
    }
    for (size_t i = 0; i < width; ++i) {
      rows.push_back(i == 100 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(i));
    }
  }
  for (size_t i = 0; i < width; ++i) rows.push_back(i % 2 ? 1e36f : -2e35f);
  return rows;
}

TEST_F(RowCodecTest, AttentionRowsEqualTheFormat) {
  const std::vector<float> rows = hard_rows(512, true);
  const size_t count = rows.size() / 512;
  const DeviceCopy<float> input(rows), decoded(rows.size());
  const DeviceCopy<uint8_t> packed(count * 584);
  launch_attention_codec(input.data(), count, packed.data(), decoded.data());
  const std::vector<uint8_t> bytes = packed.read();
  const std::vector<float> values = decoded.read();
  for (size_t r = 0; r < count; ++r) {
    format::Fp8Row expected;
    format::encode_fp8_row(rows.data() + r * 512, expected);
    EXPECT_EQ(std::memcmp(&expected, bytes.data() + r * 584, sizeof expected), 0) << "row " << r;
    EXPECT_EQ(bytes[r * 584 + 455], 0);
    float nope[448];
    format::decode_fp8_row(expected, nope);
    for (size_t i = 0; i < 448; ++i) {
      ASSERT_TRUE(values[r * 512 + i] == nope[i] || std::isnan(nope[i])) << "row " << r << " element " << i;
    }
    for (size_t i = 0; i < 64; ++i) {
      uint16_t half;
      std::memcpy(&half, bytes.data() + r * 584 + 456 + 2 * i, 2);
      ASSERT_EQ(half, format::f32_to_f16(rows[r * 512 + 448 + i])) << "row " << r << " tail " << i;
      ASSERT_EQ(values[r * 512 + 448 + i], format::f16_to_f32(half));
    }
  }
}

TEST_F(RowCodecTest, IndexRowsEqualTheFormat) {
  std::vector<float> rows = hard_rows(128, false);
  const size_t count = rows.size() / 128;
  const DeviceCopy<float> input(rows), decoded(rows.size()), rounded(rows.size());
  const DeviceCopy<uint8_t> packed(count * 68);
  launch_index_codec(input.data(), count, packed.data(), decoded.data(), rounded.data());
  const std::vector<uint8_t> bytes = packed.read();
  const std::vector<float> values = decoded.read(), heads = rounded.read();
  for (size_t r = 0; r < count; ++r) {
    format::hadamard_128(rows.data() + r * 128);
    format::Fp4Row expected;
    format::encode_fp4_row(rows.data() + r * 128, expected);
    EXPECT_EQ(std::memcmp(&expected, bytes.data() + r * 68, sizeof expected), 0) << "row " << r;
    float plain[128];
    format::decode_fp4_row(expected, plain);
    for (size_t i = 0; i < 128; ++i) {
      ASSERT_EQ(values[r * 128 + i], plain[i]) << "row " << r << " element " << i;
      ASSERT_EQ(heads[r * 128 + i], plain[i]) << "row " << r << " element " << i;
    }
  }
}

TEST_F(RowCodecTest, PairDecodersAreExact) {
  const DeviceCopy<float> out(256 * 256 * 2);
  launch_pair_decoders(out.data());
  const std::vector<float> values = out.read();
  for (size_t exponent = 12; exponent < 246; ++exponent) {  // results are normal BF16 numbers
    const float scale = format::e8m0_to_f32(static_cast<uint8_t>(exponent));
    for (size_t code = 0; code < 256; ++code) {
      const float* got = values.data() + (exponent * 256 + code) * 2;
      if ((code & 127) != 127) {
        ASSERT_EQ(got[0], format::e4m3_to_f32(static_cast<uint8_t>(code)) * scale) << exponent << " " << code;
      }
      const size_t nibble = code < 16 ? code : ~code & 15;
      ASSERT_EQ(got[1], format::e2m1_to_f32(static_cast<uint8_t>(nibble)) * scale) << exponent << " " << code;
    }
  }
}

}  // namespace
}  // namespace ds4::cuda
