#include "model/shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "support/tiny_model.hpp"

namespace ds4::model {
namespace {

using ::testing::HasSubstr;
using testing::TinyModelOptions;

std::string temporary_path() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(test->test_suite_name()) + "_" + test->name() + ".gguf";
  for (char& c : name) c = c == '/' ? '_' : c;
  return ::testing::TempDir() + name;
}

Result<ModelShape> shape_of(const TinyModelOptions& options, std::string* notice = nullptr) {
  const std::string path = temporary_path();
  if (auto written = write_tiny_model(path, options); !written) return written.error();
  auto file = format::GgufFile::open(path);
  std::filesystem::remove(path);
  if (!file) return file.error();
  return read_shape(*file, notice);
}

// Counts as they come from the keys alone.
TinyModelOptions keys_only() {
  TinyModelOptions options;
  options.metadata_only = true;
  return options;
}

std::string error_of(const TinyModelOptions& options) {
  const auto shape = shape_of(options);
  return shape ? "no error" : shape.error().message;
}

void expect_same_counts(const ModelShape& got, const ModelShape& want) {
  EXPECT_EQ(got.layers, want.layers);
  EXPECT_EQ(got.width, want.width);
  EXPECT_EQ(got.vocabulary, want.vocabulary);
  EXPECT_EQ(got.heads, want.heads);
  EXPECT_EQ(got.q_rank, want.q_rank);
  EXPECT_EQ(got.output_groups, want.output_groups);
  EXPECT_EQ(got.output_rank, want.output_rank);
  EXPECT_EQ(got.experts, want.experts);
  EXPECT_EQ(got.experts_used, want.experts_used);
  EXPECT_EQ(got.expert_width, want.expert_width);
  EXPECT_EQ(got.hash_layers, want.hash_layers);
  EXPECT_EQ(got.index_heads, want.index_heads);
  EXPECT_EQ(got.index_top_k, want.index_top_k);
  EXPECT_EQ(got.max_context, want.max_context);
  EXPECT_EQ(got.routed_scale, want.routed_scale);
  EXPECT_EQ(got.ratios, want.ratios);
}

TEST(ReadShape, RecognisesTheKnownVariants) {
  for (Variant variant : {Variant::flash, Variant::pro, Variant::nano}) {
    TinyModelOptions options = keys_only();
    options.shape = known_shape(variant);
    std::string notice = "stale";
    const auto shape = shape_of(options, &notice);
    ASSERT_TRUE(shape) << shape.error().message;
    EXPECT_EQ(shape->variant, variant);
    EXPECT_EQ(notice, "");
    expect_same_counts(*shape, known_shape(variant));
  }
}

TEST(ReadShape, KnownVariantsHaveTheirDocumentedDerivedSizes) {
  const ModelShape flash = known_shape(Variant::flash);
  EXPECT_EQ(flash.q_width(), 32768u);
  EXPECT_EQ(flash.group_width(), 4096u);
  EXPECT_EQ(flash.low_width(), 8192u);
  EXPECT_EQ(std::count(flash.ratios.begin(), flash.ratios.end(), 0u), 2);
  EXPECT_EQ(std::count(flash.ratios.begin(), flash.ratios.end(), 4u), 21);
  EXPECT_EQ(std::count(flash.ratios.begin(), flash.ratios.end(), 128u), 20);
  const ModelShape pro = known_shape(Variant::pro);
  EXPECT_EQ(pro.low_width(), 16384u);
  EXPECT_EQ(pro.group_width(), 4096u);
  EXPECT_EQ(std::count(pro.ratios.begin(), pro.ratios.end(), 4u), 30);
  EXPECT_EQ(std::count(pro.ratios.begin(), pro.ratios.end(), 128u), 31);
}

TEST(ReadShape, AnotherConsistentSetOfCountsLoadsWithANotice) {
  std::string notice;
  const auto shape = shape_of(keys_only(), &notice);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_EQ(shape->variant, Variant::other);
  EXPECT_EQ(shape->name, "tiny random model");
  EXPECT_THAT(notice, HasSubstr("none of the known variants"));
  expect_same_counts(*shape, testing::tiny_shape());
}

TEST(ReadShape, OtherRatiosThanThePatternAreAnotherVariant) {
  TinyModelOptions options = keys_only();
  options.shape = known_shape(Variant::flash);
  options.shape.ratios[2] = hca_ratio;
  const auto shape = shape_of(options);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_EQ(shape->variant, Variant::other);
}

TEST(ReadShape, ContextsBeyondPositionsOf31BitsAreRefused) {
  TinyModelOptions options = keys_only();
  options.shape.max_context = 0x7fffffff;
  EXPECT_TRUE(shape_of(options));
  options.shape.max_context = 0x80000000;
  EXPECT_THAT(error_of(options), HasSubstr("context_length is 2147483648, but must be at most 2147483647"));
}

struct WrongUint {
  const char* key;
  uint32_t value;
  const char* expected;
};

class StructuralUintKey : public ::testing::TestWithParam<WrongUint> {};

TEST_P(StructuralUintKey, AnotherValueIsRefusedWithBothValues) {
  const WrongUint& wrong = GetParam();
  TinyModelOptions options = keys_only();
  options.uint_keys[wrong.key] = wrong.value;
  const std::string error = error_of(options);
  EXPECT_THAT(error, HasSubstr(wrong.key));
  EXPECT_THAT(error, HasSubstr(std::to_string(wrong.value)));
  EXPECT_THAT(error, HasSubstr(std::string("must be ") + wrong.expected));
}

INSTANTIATE_TEST_SUITE_P(
    All, StructuralUintKey,
    ::testing::Values(WrongUint{"deepseek4.attention.head_count_kv", 2, "1"},
                      WrongUint{"deepseek4.attention.key_length", 576, "512"},
                      WrongUint{"deepseek4.attention.value_length", 128, "512"},
                      WrongUint{"deepseek4.rope.dimension_count", 32, "64"},
                      WrongUint{"deepseek4.attention.sliding_window", 4096, "128"},
                      WrongUint{"deepseek4.attention.indexer.key_length", 64, "128"},
                      WrongUint{"deepseek4.expert_shared_count", 2, "1"},
                      WrongUint{"deepseek4.expert_group_count", 8, "0"},
                      WrongUint{"deepseek4.expert_group_used_count", 4, "0"},
                      WrongUint{"deepseek4.hyper_connection.count", 2, "4"},
                      WrongUint{"deepseek4.hyper_connection.sinkhorn_iterations", 10, "20"},
                      WrongUint{"deepseek4.rope.scaling.original_context_length", 4096, "65536"}));

class StructuralFloatKey : public ::testing::TestWithParam<std::pair<const char*, float>> {};

TEST_P(StructuralFloatKey, AnotherValueIsRefused) {
  const auto& [key, value] = GetParam();
  TinyModelOptions options = keys_only();
  options.float_keys[key] = value;
  EXPECT_THAT(error_of(options),
              HasSubstr(std::string_view(key).substr(std::string_view("deepseek4.").size())));
}

INSTANTIATE_TEST_SUITE_P(All, StructuralFloatKey,
                         ::testing::Values(std::pair{"deepseek4.attention.layer_norm_rms_epsilon", 1e-5f},
                                           std::pair{"deepseek4.hyper_connection.epsilon", 1e-5f},
                                           std::pair{"deepseek4.rope.freq_base", 10000.5f},
                                           std::pair{"deepseek4.attention.compress_rope_freq_base", 10000.0f},
                                           std::pair{"deepseek4.rope.scaling.factor", 40.0f},
                                           std::pair{"deepseek4.rope.scaling.yarn_beta_fast", 31.0f},
                                           std::pair{"deepseek4.rope.scaling.yarn_beta_slow", 1.001f},
                                           std::pair{"deepseek4.expert_weights_scale", -1.5f}));

class RequiredKey : public ::testing::TestWithParam<const char*> {};

TEST_P(RequiredKey, AbsenceIsRefusedByName) {
  TinyModelOptions options = keys_only();
  options.omit.insert(GetParam());
  EXPECT_THAT(error_of(options), HasSubstr(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(
    All, RequiredKey,
    ::testing::Values("general.architecture", "deepseek4.block_count", "deepseek4.embedding_length",
                      "deepseek4.vocab_size", "deepseek4.attention.head_count",
                      "deepseek4.attention.head_count_kv", "deepseek4.attention.key_length",
                      "deepseek4.attention.value_length", "deepseek4.rope.dimension_count",
                      "deepseek4.attention.q_lora_rank", "deepseek4.attention.sliding_window",
                      "deepseek4.attention.indexer.head_count", "deepseek4.attention.indexer.key_length",
                      "deepseek4.attention.indexer.top_k", "deepseek4.attention.layer_norm_rms_epsilon",
                      "deepseek4.expert_count", "deepseek4.expert_used_count",
                      "deepseek4.expert_feed_forward_length", "deepseek4.expert_shared_count",
                      "deepseek4.expert_weights_scale", "deepseek4.expert_weights_norm",
                      "deepseek4.swiglu_clamp_exp", "deepseek4.rope.freq_base",
                      "deepseek4.rope.scaling.original_context_length", "deepseek4.rope.scaling.factor",
                      "deepseek4.rope.scaling.yarn_beta_fast", "deepseek4.rope.scaling.yarn_beta_slow",
                      // Derived from tensors where there are any.
                      "deepseek4.attention.output_group_count", "deepseek4.attention.output_lora_rank"));

TEST(ReadShape, OptionalKeysMayBeAbsent) {
  TinyModelOptions options = keys_only();
  options.omit = {"general.name", "deepseek4.context_length"};
  const auto shape = shape_of(options);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_EQ(shape->max_context, 1048576u);
}

TEST(ReadShape, KeysThatTheOtherDialectLeavesOutAreDerivedFromTensors) {
  TinyModelOptions options;
  options.omit = {"deepseek4.attention.output_group_count",
                  "deepseek4.attention.output_lora_rank",
                  "deepseek4.attention.compress_ratios",
                  "deepseek4.attention.compress_rope_freq_base",
                  "deepseek4.hash_layer_count",
                  "deepseek4.hyper_connection.count",
                  "deepseek4.hyper_connection.sinkhorn_iterations",
                  "deepseek4.hyper_connection.epsilon"};
  options.rename = {{"blk.2.attn_compressor_ape.weight", "blk.2.attn_compress_ape"},
                    {"blk.1.ffn_gate_tid2eid.weight", "blk.1.ffn_gate_tid2eid"}};
  const auto shape = shape_of(options);
  ASSERT_TRUE(shape) << shape.error().message;
  expect_same_counts(*shape, testing::tiny_shape());
}

TEST(ReadShape, AnAmbiguousHashLayerCountIsRefused) {
  TinyModelOptions options;
  options.omit = {"deepseek4.hash_layer_count", "blk.1.ffn_gate_tid2eid.weight"};
  EXPECT_THAT(error_of(options), HasSubstr("blk.2.ffn_gate_tid2eid.weight"));
}

TEST(ReadShape, ADerivedRatioMustBeOneOfTheArchitecture) {
  TinyModelOptions options;
  options.omit = {"deepseek4.attention.compress_ratios"};
  options.tensor_dims["blk.3.attn_compressor_ape.weight"] = {512, 64};
  EXPECT_THAT(error_of(options), HasSubstr("compression ratio of 64"));
}

TEST(ReadShape, FloatKeysMayBeIntegersAndRoundedValues) {
  TinyModelOptions options = keys_only();
  options.uint_keys["deepseek4.rope.freq_base"] = 10000;
  options.uint_keys["deepseek4.rope.scaling.factor"] = 16;
  options.float_keys["deepseek4.attention.compress_rope_freq_base"] = 160000.1f;
  options.float_keys["deepseek4.rope.scaling.original_context_length"] = 65536.0f;
  EXPECT_EQ(error_of(options), "no error");
}

TEST(ReadShape, NormalisationOfExpertWeightsIsPartOfTheModel) {
  TinyModelOptions options = keys_only();
  options.bool_keys["deepseek4.expert_weights_norm"] = false;
  EXPECT_THAT(error_of(options), HasSubstr("deepseek4.expert_weights_norm"));
}

TEST(ReadShape, AnotherArchitectureIsRefusedByName) {
  TinyModelOptions options = keys_only();
  options.string_keys["general.architecture"] = "llama\n";
  const std::string error = error_of(options);
  EXPECT_THAT(error, HasSubstr("\"llama\\x0a\""));
  EXPECT_THAT(error, HasSubstr("must be \"deepseek4\""));
}

TEST(ReadShape, AStringWhereANumberBelongsIsRefused) {
  TinyModelOptions options = keys_only();
  options.string_keys["deepseek4.expert_count"] = "8";
  EXPECT_THAT(error_of(options), HasSubstr("deepseek4.expert_count"));
}

TEST(ReadShape, ClampsMustCoverAllLayersAndBeTen) {
  TinyModelOptions options = keys_only();
  options.float_array_keys["deepseek4.swiglu_clamp_exp"] = {10, 10, 10, 10, 10};
  EXPECT_THAT(error_of(options), HasSubstr("5 values for 6 layers"));
  options.float_array_keys["deepseek4.swiglu_clamp_exp"] = {10, 10, 10, 7, 10, 10};
  EXPECT_THAT(error_of(options), HasSubstr("of layer 3 is 7"));
}

TEST(ReadShape, RatiosMustCoverAllLayersAndBeKnown) {
  TinyModelOptions options = keys_only();
  options.uint_array_keys["deepseek4.attention.compress_ratios"] = {0, 0, 4, 128, 4};
  EXPECT_THAT(error_of(options), HasSubstr("5 values for 6 layers"));
  options.uint_array_keys["deepseek4.attention.compress_ratios"] = {0, 0, 4, 64, 4, 128};
  EXPECT_THAT(error_of(options), HasSubstr("of layer 3 is 64"));
  options.uint_array_keys["deepseek4.attention.compress_ratios"] = {0, 0, 4, 128, 4, 128, 0};
  EXPECT_EQ(error_of(options), "no error");
}

struct BadCount {
  const char* key;
  uint32_t value;
  const char* message;
};

class InconsistentCount : public ::testing::TestWithParam<BadCount> {};

TEST_P(InconsistentCount, IsRefused) {
  TinyModelOptions options = keys_only();
  options.uint_keys[GetParam().key] = GetParam().value;
  EXPECT_THAT(error_of(options), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, InconsistentCount,
    ::testing::Values(BadCount{"deepseek4.block_count", 0, "block_count is 0"},
                      BadCount{"deepseek4.block_count", 4000000000u, "between 1 and 512"},
                      BadCount{"deepseek4.embedding_length", 0, "embedding_length is 0"},
                      BadCount{"deepseek4.embedding_length", 250, "multiple of 32"},
                      BadCount{"deepseek4.vocab_size", (1u << 20) + 1, "vocab_size is 1048577"},
                      BadCount{"deepseek4.attention.head_count", 5, "head_count 5 is not a multiple of"},
                      BadCount{"deepseek4.attention.output_group_count", 3, "output_group_count 3"},
                      BadCount{"deepseek4.attention.output_lora_rank", 17, "not a multiple of 32"},
                      BadCount{"deepseek4.attention.q_lora_rank", 100, "q_lora_rank is 100"},
                      BadCount{"deepseek4.expert_count", 4097, "expert_count is 4097"},
                      BadCount{"deepseek4.expert_used_count", 9,
                               "expert_used_count 9 is more than expert_count 8"},
                      BadCount{"deepseek4.expert_feed_forward_length", 255, "multiple of 32"},
                      BadCount{"deepseek4.hash_layer_count", 7, "hash_layer_count 7"},
                      BadCount{"deepseek4.attention.indexer.head_count", 0, "indexer.head_count is 0"},
                      BadCount{"deepseek4.attention.indexer.top_k", 0, "indexer.top_k is 0"}));

TEST(ReadShape, ADrafterStoredAsAFurtherBlockIsNotALayer) {
  TinyModelOptions options;
  options.with_mtp = true;
  options.rename["mtp.0.enorm.weight"] = "blk.6.nextn.enorm.weight";
  options.uint_keys["deepseek4.block_count"] = 7;
  const auto shape = shape_of(options);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_EQ(shape->layers, 6u);
}

TEST(ReadShape, ADrafterThatIsCountedButNotStoredIsNotALayer) {
  TinyModelOptions options;
  options.uint_keys["deepseek4.block_count"] = 7;
  options.uint_keys["deepseek4.nextn_predict_layers"] = 1;
  const auto shape = shape_of(options);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_EQ(shape->layers, 6u);
}

TEST(ReadShape, ADeclaredDrafterOutsideTheBlockCountChangesNothing) {
  TinyModelOptions options;
  options.with_mtp = true;
  options.uint_keys["deepseek4.nextn_predict_layers"] = 1;
  const auto shape = shape_of(options);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_EQ(shape->layers, 6u);
}

}  // namespace
}  // namespace ds4::model
