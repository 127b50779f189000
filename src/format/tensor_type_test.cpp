#include "format/tensor_type.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace ds4::format {
namespace {

struct Expected {
  uint32_t id;
  std::string_view name;
  uint32_t block_elements;
  uint32_t block_bytes;
};

// The GGUF standard's list, docs/formats.md.
constexpr Expected kExpected[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},
};

TEST(TensorType, EveryStandardTypeHasItsSizes) {
  for (const Expected& expected : kExpected) {
    const auto traits = type_traits(static_cast<TensorType>(expected.id));
    ASSERT_TRUE(traits) << expected.name;
    EXPECT_EQ(traits->name, expected.name);
    EXPECT_EQ(type_name(static_cast<TensorType>(expected.id)), expected.name);
    EXPECT_EQ(traits->block_elements, expected.block_elements) << expected.name;
    EXPECT_EQ(traits->block_bytes, expected.block_bytes) << expected.name;
    ASSERT_GT(traits->alignment, 0U);
    EXPECT_EQ(traits->block_bytes % traits->alignment, 0U) << expected.name;
  }
}

TEST(TensorType, OtherIdsAreUnknown) {
  std::set<uint32_t> known;
  for (const Expected& expected : kExpected) known.insert(expected.id);
  for (uint32_t id = 0; id < 300; ++id) {
    EXPECT_EQ(type_traits(static_cast<TensorType>(id)).has_value(), known.count(id) == 1) << id;
  }
  EXPECT_FALSE(type_traits(static_cast<TensorType>(UINT32_MAX)));
  EXPECT_EQ(type_name(static_cast<TensorType>(4)), "unknown");
}

TEST(TensorType, MatrixTypes) {
  const std::set<std::string_view> matrix = {"F32",  "F16",  "BF16",    "Q8_0",
                                             "Q4_K", "Q2_K", "IQ2_XXS", "MXFP4"};
  for (const Expected& expected : kExpected) {
    EXPECT_EQ(is_matrix_type(static_cast<TensorType>(expected.id)), matrix.count(expected.name) == 1)
        << expected.name;
  }
}

TEST(TensorType, RowBytes) {
  // One expert of the Flash model: 2048 rows of 4096 inputs.
  EXPECT_EQ(row_bytes(TensorType::iq2_xxs, 4096) * 2048, 2162688U);
  EXPECT_EQ(row_bytes(TensorType::q4_k, 4096) * 2048, 4718592U);
  EXPECT_EQ(row_bytes(TensorType::mxfp4, 4096) * 2048, 4456448U);
  EXPECT_EQ(row_bytes(TensorType::q2_k, 2048) * 4096, 2752512U);
  EXPECT_EQ(row_bytes(TensorType::q8_0, 64), 68U);
  EXPECT_EQ(row_bytes(TensorType::f32, 3), 12U);
}

}  // namespace
}  // namespace ds4::format
