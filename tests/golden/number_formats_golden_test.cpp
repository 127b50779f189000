// Number formats against numbers computed elsewhere: the model's round trips bit for bit, Q8_0 blocks by
// hash.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "format/fp4_row.hpp"
#include "format/fp8_e4m3.hpp"
#include "format/fp8_row.hpp"
#include "format/hadamard.hpp"
#include "format/number_formats.hpp"
#include "support/ops_vectors.hpp"

namespace ds4 {
namespace {

using format::TensorType;

void expect_same_bits(const float* actual, const float* expected, size_t count, const std::string& what) {
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << " element " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

TEST(RoundTripGolden, E4m3Scalars) {
  const test::OpsVectors ops;
  const auto x = ops.floats("e4m3", "x"), expected = ops.floats("e4m3", "out");
  for (size_t i = 0; i < x.values.size(); ++i) {
    const float actual = format::e4m3_to_f32(format::f32_to_e4m3(x.values[i]));
    expect_same_bits(&actual, &expected.values[i], 1, "e4m3 of " + std::to_string(x.values[i]));
  }
}

TEST(RoundTripGolden, Fp8Rows) {
  const test::OpsVectors ops;
  auto x = ops.floats("fp8_round_trip", "x");
  const auto expected = ops.floats("fp8_round_trip", "out");
  for (size_t row = 0; row < x.shape[0]; ++row) {
    float* values = x.values.data() + row * x.row_size();
    format::fp8_round_trip(values);
    expect_same_bits(values, expected.row(row), x.row_size(), "row " + std::to_string(row));
  }
}

TEST(RoundTripGolden, Fp4Rows) {
  const test::OpsVectors ops;
  auto x = ops.floats("fp4_round_trip", "x");
  const auto expected = ops.floats("fp4_round_trip", "out");
  for (size_t row = 0; row < x.shape[0]; ++row) {
    float* values = x.values.data() + row * x.row_size();
    format::fp4_round_trip(values);
    expect_same_bits(values, expected.row(row), x.row_size(), "row " + std::to_string(row));
  }
}

// The vectors come from a matrix product, whose sums have another order than the butterfly: the transform
// agrees to rounding, the FP4 values after it exactly.
TEST(RoundTripGolden, IndexerRows) {
  const test::OpsVectors ops;
  auto x = ops.floats("indexer_round_trip", "x");
  auto hadamard = ops.floats("indexer_round_trip", "hadamard");
  const auto expected = ops.floats("indexer_round_trip", "out");
  for (size_t row = 0; row < x.shape[0]; ++row) {
    const std::string what = "row " + std::to_string(row);
    float* values = x.values.data() + row * x.row_size();
    float* transformed = hadamard.values.data() + row * x.row_size();
    format::hadamard_128(values);
    float largest = 0;
    for (size_t i = 0; i < x.row_size(); ++i) largest = std::max(largest, std::fabs(transformed[i]));
    for (size_t i = 0; i < x.row_size(); ++i) ASSERT_NEAR(values[i], transformed[i], 1e-6f * largest) << what;
    format::fp4_round_trip(values);
    format::fp4_round_trip(transformed);
    expect_same_bits(transformed, expected.row(row), x.row_size(), what);
    expect_same_bits(values, expected.row(row), x.row_size(), what + " with our transform");
  }
}

/// The inputs that tests/data/quant-cases.json describes in words.
std::vector<float> quantizer_input(const std::string& name, size_t count) {
  std::vector<float> x(count, 0.0f);
  uint32_t state = 12345;
  for (size_t i = 0; i < count; ++i) {
    if (name == "cubic_random") {
      state = state * 1664525u + 1013904223u;
      const float v = 2.0f * (static_cast<float>(state >> 8) * 0x1p-24f) - 1.0f;
      x[i] = (v * v) * v;
    } else if (name == "const_pos" || name == "const_neg") {
      x[i] = name == "const_pos" ? 0.5f : -0.5f;
    } else if (name == "spike") {
      x[i] = i == 100 ? -3.0f : 0.0f;
    } else if (name == "ramp") {
      x[i] = (static_cast<float>(i) - 128.0f) / 64.0f;
    } else if (name == "alternating") {
      x[i] = i % 2 == 0 ? 0.25f : -0.25f;
    }
  }
  return x;
}

TensorType type_named(std::string_view name) {
  for (const TensorType type : {TensorType::q8_0, TensorType::q4_k, TensorType::q2_k, TensorType::iq2_xxs}) {
    const std::string_view known = format::type_name(type);
    if (std::equal(known.begin(), known.end(), name.begin(), name.end(),
                   [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); }))
      return type;
  }
  return TensorType::f32;
}

std::string hash_of(const std::vector<std::byte>& bytes) {
  uint64_t hash = 1469598103934665603u;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 1099511628211u;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

/// The importance that the cases describe in words.
std::vector<float> quantizer_importance(const std::string& name, size_t cols) {
  std::vector<float> importance(cols, 1.0f);
  uint32_t state = 777;
  for (float& value : importance) {
    if (name != "cubic_random") continue;
    state = state * 1664525u + 1013904223u;
    const float v = 2.0f * (static_cast<float>(state >> 8) * 0x1p-24f) - 1.0f;
    value = v * v;
  }
  return importance;
}

// Byte for byte what the reference procedures write, on every instruction set of this machine.
TEST(QuantizerGolden, EncodersWriteTheBytesOfTheReferenceProcedures) {
  const auto cases = boost::json::parse(test::read_file(DS4_SOURCE_DIR "/tests/data/quant-cases.json"));
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    int tested = 0;
    for (const auto& item : cases.at("cases").as_array()) {
      const TensorType type = type_named(item.at("type").as_string());
      ASSERT_NE(type, TensorType::f32);
      const std::string name(item.at("name").as_string());
      const auto rows = item.at("rows").to_number<size_t>(), cols = item.at("cols").to_number<size_t>();
      const auto x = quantizer_input(name, rows * cols);
      const auto importance = format::prepare_importance(quantizer_importance(name, cols));
      ASSERT_TRUE(importance);
      const float* weights = item.at("weighted").as_bool() ? importance->data() : nullptr;
      const size_t row_bytes = format::row_bytes(type, cols);
      std::vector<std::byte> bytes(rows * row_bytes);
      for (size_t row = 0; row < rows; ++row) {
        ASSERT_TRUE(format::encode_weighted_row(type, x.data() + row * cols, cols, weights,
                                                bytes.data() + row * row_bytes));
      }
      ASSERT_EQ(bytes.size(), item.at("bytes").to_number<size_t>()) << name;
      EXPECT_EQ(item.at("fnv1a64").as_string(), hash_of(bytes))
          << name << " " << format::type_name(type) << (weights ? " weighted" : "") << " "
          << hwy::TargetName(target);
      ++tested;
    }
    EXPECT_EQ(tested, 42);
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace
}  // namespace ds4
