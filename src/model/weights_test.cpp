#include "model/weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "format/number_formats.hpp"
#include "support/tiny_model.hpp"

namespace ds4::model {
namespace {

using format::GgufFile;
using format::TensorType;
using ::testing::HasSubstr;
using testing::TinyModelOptions;

std::string temporary_path(const char* suffix = "") {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(test->test_suite_name()) + "_" + test->name() + suffix + ".gguf";
  for (char& c : name) c = c == '/' ? '_' : c;
  return ::testing::TempDir() + name;
}

// Counts that keep the file small; every kind of layer is there.
TinyModelOptions small() {
  TinyModelOptions options;
  options.shape.vocabulary = 264;
  options.shape.layers = 5;
  options.shape.ratios = {0, 0, 4, 128, 4};
  options.shape.experts = 4;
  options.shape.width = options.shape.expert_width = options.shape.q_rank = 64;
  options.shape.heads = 2;
  return options;
}

GgufFile open_model(const TinyModelOptions& options) {
  const std::string path = temporary_path();
  const auto written = write_tiny_model(path, options);
  EXPECT_TRUE(written) << written.error().message;
  auto file = GgufFile::open(path);
  std::filesystem::remove(path);
  EXPECT_TRUE(file) << file.error().message;
  return std::move(file).value();
}

std::string error_of(const TinyModelOptions& options) {
  const GgufFile file = open_model(options);
  const auto weights = bind_weights(file, options.shape);
  return weights ? "no error" : weights.error().message;
}

TEST(BindWeights, BindsEveryTensorOfEveryKindOfLayer) {
  TinyModelOptions options = small();
  const GgufFile file = open_model(options);
  const auto weights = bind_weights(file, options.shape);
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_EQ(file.tensors().size(), 6u + 5 * 24 + 3 * 4 + 2 * 6);
  ASSERT_EQ(weights->layers.size(), 5u);
  EXPECT_EQ(weights->output.name, "output.weight");
  EXPECT_EQ(weights->hc_head.fn.dims[0], 256u);

  const LayerWeights& window_only = weights->layers[0];
  EXPECT_EQ(window_only.ratio, 0u);
  EXPECT_EQ(window_only.compressor.kv.data, nullptr);
  EXPECT_NE(window_only.router_table.data, nullptr);
  EXPECT_EQ(window_only.router_bias.data, nullptr);

  const LayerWeights& sparse = weights->layers[4];
  EXPECT_EQ(sparse.ratio, 4u);
  EXPECT_EQ(sparse.compressor.kv.dims[1], 1024u);
  EXPECT_EQ(sparse.index_compressor.ape.dims[0], 256u);
  EXPECT_EQ(sparse.index_q_b.name, "blk.4.indexer.attn_q_b.weight");
  EXPECT_EQ(sparse.router_table.data, nullptr);
  EXPECT_NE(sparse.router_bias.data, nullptr);

  const LayerWeights& heavy = weights->layers[3];
  EXPECT_EQ(heavy.ratio, 128u);
  EXPECT_EQ(heavy.compressor.ape.dims[1], 128u);
  EXPECT_EQ(heavy.index_q_b.data, nullptr);
}

TEST(BindWeights, TheFlashListHasItsDocumentedLength) {
  EXPECT_EQ(6 + 43 * 24 + 41 * 4 + 21 * 6, 1328);
  TinyModelOptions options = small();
  options.shape.layers = 43;
  options.shape.ratios = known_shape(Variant::flash).ratios;
  options.shape.expert_width = options.shape.width = 32;
  options.shape.experts = options.shape.experts_used = 1;
  options.shape.heads = options.shape.output_groups = 1;
  options.shape.q_rank = options.shape.output_rank = 32;
  const GgufFile file = open_model(options);
  EXPECT_EQ(file.tensors().size(), 1328u);
  EXPECT_TRUE(bind_weights(file, options.shape));
}

class EachTensor : public ::testing::TestWithParam<const char*> {};

TEST_P(EachTensor, IsMissed) {
  TinyModelOptions options = small();
  options.omit.insert(GetParam());
  EXPECT_THAT(error_of(options), HasSubstr(std::string("tensor ") + GetParam() + " is missing"));
}

TEST_P(EachTensor, MustHaveTheRightDims) {
  TinyModelOptions options = small();
  options.tensor_dims[GetParam()] = {64, 3};
  const std::string error = error_of(options);
  EXPECT_THAT(error, HasSubstr(std::string("tensor ") + GetParam() + " has dims [64, 3], expected ["));
}

INSTANTIATE_TEST_SUITE_P(
    All, EachTensor,
    ::testing::Values("token_embd.weight", "output_norm.weight", "output.weight", "output_hc_fn.weight",
                      "output_hc_scale.weight", "output_hc_base.weight", "blk.0.hc_attn_fn.weight",
                      "blk.1.hc_attn_scale.weight", "blk.2.hc_attn_base.weight", "blk.0.attn_norm.weight",
                      "blk.0.attn_q_a.weight", "blk.0.attn_q_a_norm.weight", "blk.0.attn_q_b.weight",
                      "blk.0.attn_kv.weight", "blk.0.attn_kv_a_norm.weight", "blk.0.attn_sinks.weight",
                      "blk.0.attn_output_a.weight", "blk.0.attn_output_b.weight",
                      "blk.3.attn_compressor_ape.weight", "blk.3.attn_compressor_kv.weight",
                      "blk.3.attn_compressor_gate.weight", "blk.3.attn_compressor_norm.weight",
                      "blk.4.indexer.attn_q_b.weight", "blk.4.indexer.proj.weight",
                      "blk.4.indexer_compressor_ape.weight", "blk.4.indexer_compressor_kv.weight",
                      "blk.4.indexer_compressor_gate.weight", "blk.4.indexer_compressor_norm.weight",
                      "blk.0.hc_ffn_fn.weight", "blk.0.hc_ffn_scale.weight", "blk.0.hc_ffn_base.weight",
                      "blk.0.ffn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.3.exp_probs_b.bias",
                      "blk.2.ffn_gate_tid2eid.weight", "blk.0.ffn_gate_exps.weight",
                      "blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight", "blk.0.ffn_gate_shexp.weight",
                      "blk.0.ffn_up_shexp.weight", "blk.0.ffn_down_shexp.weight"));

TEST(BindWeights, AcceptsEveryMatrixTypeThatRowsCanHold) {
  for (TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q8_0,
                          TensorType::q4_k, TensorType::q2_k, TensorType::iq2_xxs, TensorType::mxfp4}) {
    TinyModelOptions options = small();
    options.shape.width = options.shape.expert_width = options.shape.q_rank = 256;
    options.shape.output_rank = 128;
    options.embedding = options.output = options.projection = options.shared_expert = type;
    options.gate_up_expert = options.down_expert = options.small_matrix = type;
    EXPECT_EQ(error_of(options), "no error") << format::type_name(type);
  }
}

TEST(BindWeights, SmallTensorsMayHaveSixteenBits) {
  for (TensorType type : {TensorType::f16, TensorType::bf16}) {
    TinyModelOptions options = small();
    options.vector = options.mixer = type;
    EXPECT_EQ(error_of(options), "no error");
  }
}

TEST(BindWeights, RefusesTypesThatATensorCannotHave) {
  TinyModelOptions options = small();
  options.tensor_types["blk.0.attn_norm.weight"] = TensorType::q8_0;
  EXPECT_THAT(error_of(options),
              HasSubstr("blk.0.attn_norm.weight has type Q8_0, expected F32, F16 or BF16"));

  options = small();
  options.tensor_types["blk.1.ffn_gate_tid2eid.weight"] = TensorType::f32;
  EXPECT_THAT(error_of(options), HasSubstr("blk.1.ffn_gate_tid2eid.weight has type F32, expected I32"));

  options = small();
  options.tensor_types["blk.1.attn_kv.weight"] = TensorType::i32;
  EXPECT_THAT(error_of(options), HasSubstr("blk.1.attn_kv.weight has type I32, expected a type this engine"));

  options = small();
  options.tensor_types["blk.1.ffn_up_exps.weight"] = TensorType::q8_0;
  EXPECT_THAT(error_of(options), HasSubstr("must have one type, but have F32 and Q8_0"));
}

TEST(BindWeights, RouterTablesMustNameExpertsThatExist) {
  TinyModelOptions options = small();
  options.bad_router_tables.insert("blk.2.ffn_gate_tid2eid.weight");
  EXPECT_THAT(
      error_of(options),
      HasSubstr("blk.2.ffn_gate_tid2eid.weight names expert 4 for token 263, but there are 4 experts"));
}

TEST(BindWeights, AcceptsTheNamesOfTheOtherDialect) {
  TinyModelOptions options = small();
  options.rename = {{"output_hc_fn.weight", "hc_head_fn"},
                    {"output_hc_scale.weight", "hc_head_scale.weight"},
                    {"output_hc_base.weight", "output_hc_base"},
                    {"blk.0.hc_attn_fn.weight", "blk.0.hc_attn_fn"},
                    {"blk.0.hc_ffn_scale.weight", "blk.0.hc_ffn_scale"},
                    {"blk.0.attn_sinks.weight", "blk.0.attn_sinks"},
                    {"blk.0.ffn_gate_tid2eid.weight", "blk.0.ffn_gate_tid2eid"},
                    {"blk.3.exp_probs_b.bias", "blk.3.exp_probs_b"},
                    {"blk.0.attn_kv.weight", "blk.0.attn_kv_latent.weight"},
                    {"blk.2.attn_compressor_ape.weight", "blk.2.attn_compress_ape"},
                    {"blk.2.attn_compressor_kv.weight", "blk.2.attn_compress_kv.weight"},
                    {"blk.2.attn_compressor_norm.weight", "blk.2.attn_compress_norm.weight"},
                    {"blk.2.indexer_compressor_ape.weight", "blk.2.indexer.compress_ape"},
                    {"blk.2.indexer_compressor_gate.weight", "blk.2.indexer.compress_gate.weight"}};
  const GgufFile file = open_model(options);
  const auto weights = bind_weights(file, options.shape);
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_EQ(weights->layers[0].kv.name, "blk.0.attn_kv_latent.weight");
  EXPECT_EQ(weights->hc_head.fn.name, "hc_head_fn");
}

TEST(BindWeights, TwoNamesForOneTensorAreAmbiguous) {
  TinyModelOptions options = small();
  options.with_mtp = true;
  options.rename["mtp.0.enorm.weight"] = "blk.0.attn_kv_latent.weight";
  EXPECT_THAT(error_of(options),
              HasSubstr("under two names, blk.0.attn_kv.weight and blk.0.attn_kv_latent.weight"));
}

TEST(BindMtp, BindsFromTheSameFileOrOneOfItsOwn) {
  TinyModelOptions options = small();
  EXPECT_FALSE(has_mtp(open_model(options)));
  options.with_mtp = true;
  const GgufFile both = open_model(options);
  EXPECT_TRUE(has_mtp(both));
  EXPECT_TRUE(bind_weights(both, options.shape));
  EXPECT_TRUE(bind_mtp(both, options.shape));

  // In Pro layer 1 has ratio 128, but the MTP layer is 0 all the same.
  options.shape.ratios = {128, 128, 4, 128, 4};
  const std::string path = temporary_path("_mtp");
  ASSERT_TRUE(write_tiny_mtp(path, options));
  const auto alone = GgufFile::open(path);
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_EQ(alone->tensors().size(), 32u);
  const auto mtp = bind_mtp(*alone, options.shape);
  std::filesystem::remove(path);
  ASSERT_TRUE(mtp) << mtp.error().message;
  EXPECT_EQ(mtp->layer.ratio, 0u);
  EXPECT_EQ(mtp->layer.compressor.kv.data, nullptr);
  EXPECT_EQ(mtp->layer.router_table.data, nullptr);
  EXPECT_EQ(mtp->layer.router_bias.name, "mtp.0.exp_probs_b.bias");
  EXPECT_EQ(mtp->hidden_proj.name, "mtp.0.h_proj.weight");
}

TEST(BundledNano, BindsWithItsDrafter) {
  const auto file = GgufFile::open(DS4_SOURCE_DIR "/models/nano/nano.gguf");
  ASSERT_TRUE(file) << file.error().message;
  const auto shape = read_shape(*file, nullptr);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_EQ(shape->variant, Variant::nano);
  EXPECT_EQ(shape->name, "DeepSeek V4 Nano");
  const auto weights = bind_weights(*file, *shape);
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_EQ(weights->layers[4].down_experts.type, TensorType::q8_0);
  EXPECT_EQ(weights->layers[4].index_proj.type, TensorType::f16);
  EXPECT_FALSE(has_mtp(*file));
  const auto drafter = GgufFile::open(DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf");
  ASSERT_TRUE(drafter) << drafter.error().message;
  const auto mtp = bind_mtp(*drafter, *shape);
  EXPECT_TRUE(mtp) << mtp.error().message;
}

TEST(BindMtp, NamesWhatIsMissing) {
  TinyModelOptions options = small();
  options.with_mtp = true;
  options.omit.insert("mtp.0.hc_head_base.weight");
  const GgufFile file = open_model(options);
  const auto mtp = bind_mtp(file, options.shape);
  ASSERT_FALSE(mtp);
  EXPECT_THAT(mtp.error().message, HasSubstr("tensor mtp.0.hc_head_base.weight is missing"));
}

TEST(TinyModel, RandomBlocksHaveTheSameSpreadAsEncodedValues) {
  TinyModelOptions options = small();
  options.shape.width = 256;
  for (TensorType type :
       {TensorType::q8_0, TensorType::q4_k, TensorType::q2_k, TensorType::iq2_xxs, TensorType::mxfp4}) {
    options.gate_up_expert = type;
    const GgufFile file = open_model(options);
    const Tensor* tensor = file.find_tensor("blk.0.ffn_gate_exps.weight");
    ASSERT_NE(tensor, nullptr);
    std::vector<float> values(tensor->elements());
    format::decode_row(type, tensor->data, values.size(), values.data());
    double squares = 0;
    for (float value : values) squares += double{value} * value;
    const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
    EXPECT_GT(deviation, 0.5 / 16) << format::type_name(type);  // 1 / sqrt(256) is wanted
    EXPECT_LT(deviation, 2.0 / 16) << format::type_name(type);
  }
}

TEST(TinyModel, TheSeedDecidesEveryTensorOnItsOwn) {
  TinyModelOptions options = small();
  const GgufFile first = open_model(options);
  options.omit.insert("blk.0.attn_norm.weight");
  const GgufFile second = open_model(options);
  options.seed = 2;
  const GgufFile other = open_model(options);
  const auto bytes = [](const GgufFile& file) {
    const Tensor* tensor = file.find_tensor("blk.1.attn_kv.weight");
    return std::string(reinterpret_cast<const char*>(tensor->data), tensor->size_bytes);
  };
  EXPECT_EQ(bytes(first), bytes(second));
  EXPECT_NE(bytes(first), bytes(other));
}

}  // namespace
}  // namespace ds4::model
