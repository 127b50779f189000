// Every number format at every position of a block, and files from every format into every other, against the
// decoders that were written a second time (scalar_decoders.hpp).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "checkpoint_fixture.hpp"
#include "convert.hpp"
#include "format/gguf.hpp"
#include "format/imatrix.hpp"
#include "format/number_formats.hpp"
#include "scalar_decoders.hpp"

namespace ds4 {
namespace {

using format::TensorType;

constexpr TensorType matrix_types[] = {TensorType::f32,     TensorType::f16,  TensorType::bf16,
                                       TensorType::q8_0,    TensorType::q4_k, TensorType::q2_k,
                                       TensorType::iq2_xxs, TensorType::mxfp4};

std::string name_of(TensorType type) {
  return std::string(format::type_name(type));
}

std::vector<float> decode_again(TensorType type, const std::byte* bytes, size_t count) {
  return test::decode_again(type, reinterpret_cast<const uint8_t*>(bytes), count);
}

std::vector<float> decode(TensorType type, const std::byte* bytes, size_t count) {
  std::vector<float> values(count);
  format::decode_row(type, bytes, count, values.data());
  return values;
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected,
                      const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << what;
}

/// Puts a finite value into the scales of a block, of which every other bit means something.
void make_scales_finite(TensorType type, std::byte* block) {
  const auto f16_at = [&](size_t offset) {
    block[offset + 1] = (block[offset + 1] & std::byte{0x83}) | std::byte{0x30};
  };
  switch (type) {
    case TensorType::q8_0:
    case TensorType::iq2_xxs:
      return f16_at(0);
    case TensorType::q4_k:
      f16_at(0);
      return f16_at(2);
    case TensorType::q2_k:
      f16_at(80);
      return f16_at(82);
    case TensorType::mxfp4:
      block[0] &= std::byte{0x7f};
      return;
    case TensorType::f16:
      block[1] &= std::byte{0xbf};
      return;
    case TensorType::f32:
      block[3] &= std::byte{0xbf};
      return;
    default:
      block[1] &= std::byte{0xbf};
  }
}

TEST(BlockPositions, AnyBitsMeanTheSameToBothDecoders) {
  std::mt19937_64 random(5);
  for (const TensorType type : matrix_types) {
    const auto traits = *format::type_traits(type);
    for (const size_t blocks : {1, 2, 3, 64}) {
      const size_t count = blocks * traits.block_elements;
      for (int round = 0; round < 50; ++round) {
        std::vector<std::byte> bytes(blocks * traits.block_bytes);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        for (size_t b = 0; b < blocks; ++b) make_scales_finite(type, bytes.data() + b * traits.block_bytes);
        expect_same_bits(decode(type, bytes.data(), count), decode_again(type, bytes.data(), count),
                         name_of(type));
      }
    }
  }
}

// A large value among small ones must come back where it was put.
TEST(BlockPositions, EveryPositionHoldsItsOwnValue) {
  for (const TensorType type : matrix_types) {
    const size_t count = 3 * 256, row_bytes = format::row_bytes(type, count);
    const std::vector<float> ones(count, 1.0f);
    for (size_t i = 0; i < count; ++i) {
      std::vector<float> values(count);
      for (size_t k = 0; k < count; ++k) values[k] = 0.02f * std::sin(static_cast<float>(k * 7 + 1));
      values[i] = i % 2 == 0 ? 1.0f : -1.0f;
      std::vector<std::byte> bytes(row_bytes);
      ASSERT_TRUE(format::encode_weighted_row(type, values.data(), count, ones.data(), bytes.data()));
      const auto got = decode_again(type, bytes.data(), count);
      expect_same_bits(decode(type, bytes.data(), count), got, name_of(type));
      EXPECT_NEAR(got[i], values[i], 0.3) << name_of(type) << " position " << i;
      for (size_t k = 0; k < count; ++k)
        ASSERT_TRUE(k == i || std::fabs(got[k]) < 0.5f)
            << name_of(type) << ": the value of " << i << " shows at " << k;
    }
  }
}

class CrossTypes : public ::testing::Test {
 protected:
  static constexpr uint64_t columns = 512;  // two blocks of 256
  const std::vector<std::string> changed_ = {"blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight",
                                             "blk.1.ffn_down_exps.weight", "blk.1.attn_q_b.weight"};

  void SetUp() override {
    folder_ = ::testing::TempDir() + "ds4_cross_types";
    std::filesystem::remove_all(folder_);
    fixture_.write(folder_ + "/checkpoint");
    for (const std::string& name : changed_) {
      std::vector<float> values(columns *
                                (name.find("exps") != std::string::npos ? fixture_.shape.experts : 1));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = std::exp(std::sin(static_cast<float>(i * name.size()) * 0.3f));
      imatrix_.entries[name] = values;
    }
    std::ofstream(imatrix_path(), std::ios::binary) << format::serialize_imatrix(imatrix_).value();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string imatrix_path() const { return folder_ + "/importance.dat"; }

  /// `changed_` in `type`, everything else in Q8_0.
  void convert(const std::string& source, TensorType type, const std::string& output) const {
    quantize::ConvertOptions options;
    (source.empty() ? options.checkpoint : options.gguf) = source.empty() ? folder_ + "/checkpoint" : source;
    options.output = output;
    options.imatrix = imatrix_path();
    options.overwrite = true;
    options.threads = 2;
    for (const std::string& name : changed_) ASSERT_TRUE(options.recipe.add_rule(name + "=" + name_of(type)));
    const auto made = quantize::convert_model(options);
    ASSERT_TRUE(made) << made.error().message;
  }

  /// Row by row what the encoder makes of the values that the second decoder reads from the source.
  void check(const std::string& name, const format::GgufTensor& from, const format::GgufTensor& to) const {
    const uint64_t rows = from.elements() / columns, experts = from.dims[2];
    const auto& raw = imatrix_.entries.at(name);
    for (uint64_t row = 0; row < rows; ++row) {
      const uint64_t expert = row / (rows / experts);
      const auto weights =
          format::prepare_importance(std::span(raw).subspan(expert * columns, columns)).value();
      const auto values = decode_again(from.type, from.data + row * from.size_bytes / rows, columns);
      std::vector<std::byte> expected(format::row_bytes(to.type, columns));
      ASSERT_TRUE(
          format::encode_weighted_row(to.type, values.data(), columns, weights.data(), expected.data()));
      const std::byte* got = to.data + row * expected.size();
      if (from.type != to.type) {
        ASSERT_EQ(std::memcmp(got, expected.data(), expected.size()), 0)
            << name << " row " << row << ": " << name_of(from.type) << " to " << name_of(to.type);
      }
      expect_same_bits(decode(to.type, got, columns), decode_again(to.type, got, columns), name);
    }
    if (from.type == to.type) {
      EXPECT_EQ(std::memcmp(from.data, to.data, from.size_bytes), 0) << name;
    }
  }

  quantize::CheckpointFixture fixture_{columns};
  format::Imatrix imatrix_;
  std::string folder_;
};

TEST_F(CrossTypes, FilesHoldWhatTheFormatsSay) {
  for (const TensorType source : matrix_types) {
    const std::string from_path = folder_ + "/from.gguf", to_path = folder_ + "/to.gguf";
    convert("", source, from_path);
    const auto from = format::GgufFile::open(from_path);
    ASSERT_TRUE(from);
    for (const TensorType target : matrix_types) {
      convert(from_path, target, to_path);
      const auto to = format::GgufFile::open(to_path);
      ASSERT_TRUE(to);
      for (const format::GgufTensor& tensor : to->tensors()) {
        const auto* before = from->find_tensor(tensor.name);
        ASSERT_TRUE(before && before->dims == tensor.dims) << tensor.name;
        if (imatrix_.entries.contains(tensor.name)) {
          ASSERT_EQ(tensor.type, target);
          check(std::string(tensor.name), *before, tensor);
        } else {
          ASSERT_EQ(std::memcmp(before->data, tensor.data, tensor.size_bytes), 0) << tensor.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ds4
