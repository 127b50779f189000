#include "convert.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "convert_fixture.hpp"
#include "model/weights.hpp"

namespace ds4::quantize {
namespace {

using format::GgufFile;
using format::TensorType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(Convert, F32HoldsExactlyTheValuesOfFp8Fp4AndPlainTensors) {
  options_.mtp_output = folder_ + "/mtp.gguf";
  const auto summary = convert();
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(summary->mtp_tensors, 32u);
  size_t checked = 0;
  for (const std::string& path : {options_.output, options_.mtp_output}) {
    const GgufFile file = open(path);
    for (const auto& tensor : file.tensors()) {
      EXPECT_EQ(decoded(tensor), expected(tensor.name)) << tensor.name;
      ++checked;
    }
  }
  EXPECT_EQ(checked, summary->tensors + summary->mtp_tensors);
}

TEST_F(Convert, TheResultIsAModelThatBinds) {
  options_.mtp_output = folder_ + "/mtp.gguf";
  options_.recipe = Preset::q8;
  options_.name = "small";
  ASSERT_TRUE(convert());
  const GgufFile file = open(options_.output);
  const auto shape = model::read_shape(file, nullptr);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_EQ(shape->name, "small");
  EXPECT_EQ(shape->ratios, checkpoint_.shape.ratios);
  EXPECT_EQ(shape->routed_scale, 2.0f);
  const auto weights = model::bind_weights(file, *shape);
  EXPECT_TRUE(weights) << weights.error().message;
  const GgufFile mtp_file = open(options_.mtp_output);
  EXPECT_EQ(*mtp_file.get_string("general.architecture"), "deepseek4_mtp_support");
  const auto mtp = model::bind_mtp(mtp_file, *shape);
  EXPECT_TRUE(mtp) << mtp.error().message;
}

TEST_F(Convert, Q8StaysWithinHalfAStepOfEveryBlock) {
  options_.recipe = Preset::q8;
  ASSERT_TRUE(convert());
  const GgufFile file = open(options_.output);
  for (const char* name : {"blk.1.attn_q_b.weight", "blk.0.ffn_down_exps.weight", "output.weight"}) {
    const auto* tensor = file.find_tensor(name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->type, TensorType::q8_0);
    const std::vector<float> want = expected(name);
    const std::vector<float> got = decoded(*tensor);
    for (size_t block = 0; block < want.size(); block += 32) {
      float largest = 0;
      for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::abs(want[i]));
      // Half a step, and the rounding of the scale to F16.
      for (size_t i = block; i < block + 32; ++i)
        EXPECT_NEAR(got[i], want[i], largest / 127 * 0.5f + largest / 1024) << name << " " << i;
    }
  }
}

TEST_F(Convert, RecipesGiveTheirTypes) {
  struct Case {
    Preset recipe;
    TensorType embedding, projection, experts, router, mixer, ape;
  };
  constexpr auto f32 = TensorType::f32, f16 = TensorType::f16, bf16 = TensorType::bf16, q8 = TensorType::q8_0;
  for (const Case& c :
       {Case{Preset::f32, f32, f32, f32, f32, f32, f32}, Case{Preset::f16, f16, f16, f16, f16, f32, f32},
        Case{Preset::bf16, bf16, bf16, bf16, bf16, f32, f32}, Case{Preset::q8, f16, q8, q8, f16, f16, f16}}) {
    options_.recipe = c.recipe;
    options_.overwrite = true;
    ASSERT_TRUE(convert());
    const GgufFile file = open(options_.output);
    const auto type = [&](const char* name) { return file.find_tensor(name)->type; };
    EXPECT_EQ(type("token_embd.weight"), c.embedding);
    EXPECT_EQ(type("output.weight"), c.projection);
    EXPECT_EQ(type("blk.0.attn_kv.weight"), c.projection);
    EXPECT_EQ(type("blk.0.ffn_up_shexp.weight"), c.projection);
    EXPECT_EQ(type("blk.0.ffn_up_exps.weight"), c.experts);
    EXPECT_EQ(type("blk.0.ffn_gate_inp.weight"), c.router);
    EXPECT_EQ(type("blk.1.indexer.proj.weight"), c.router);
    EXPECT_EQ(type("blk.2.attn_compressor_kv.weight"), c.router);
    EXPECT_EQ(type("blk.0.hc_attn_fn.weight"), c.mixer);
    EXPECT_EQ(type("blk.2.attn_compressor_ape.weight"), c.ape);
    EXPECT_EQ(type("blk.0.attn_norm.weight"), f32);
    EXPECT_EQ(type("blk.0.ffn_gate_tid2eid.weight"), TensorType::i32);
  }
}

TEST_F(Convert, WritesTheTokenizer) {
  checkpoint_.tokenizer_config = R"({"chat_template": [{"name": "tool", "template": "x"},
                                                       {"name": "default", "template": "{{ bos }}"}]})";
  ASSERT_TRUE(convert());
  const GgufFile file = open(options_.output);
  const auto tokens = file.get_string_array("tokenizer.ggml.tokens");
  ASSERT_TRUE(tokens);
  ASSERT_EQ(tokens->size(), 300u);
  EXPECT_EQ((*tokens)[0], "<｜begin▁of▁sentence｜>");
  EXPECT_EQ((*tokens)[4], "ab");
  EXPECT_EQ((*tokens)[299], "[PAD299]");
  const auto* types = file.find("tokenizer.ggml.token_type");
  ASSERT_NE(types, nullptr);
  std::vector<int32_t> head(11);
  std::memcpy(head.data(), std::get<format::GgufArray>(types->value).bytes.data(),
              head.size() * sizeof(int32_t));
  EXPECT_THAT(head, ElementsAre(3, 3, 1, 1, 1, 4, 4, 4, 4, 4, 5));
  const auto merges = file.get_string_array("tokenizer.ggml.merges");
  ASSERT_TRUE(merges);
  EXPECT_THAT(*merges, ElementsAre("a b", "b a"));
  EXPECT_EQ(*file.get_uint("tokenizer.ggml.eos_token_id"), 1u);
  EXPECT_EQ(*file.get_string("tokenizer.chat_template"), "{{ bos }}");
}

TEST_F(Convert, SaysWhenTheMtpBlockIsLeftOut) {
  const auto summary = convert();
  ASSERT_TRUE(summary);
  EXPECT_TRUE(summary->mtp_left_out);
  EXPECT_EQ(files(), 2u);
}

TEST_F(Convert, RefusesToReplaceAFileUnlessTold) {
  ASSERT_TRUE(convert());
  const auto again = convert();
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("--overwrite"));
  options_.overwrite = true;
  EXPECT_TRUE(convert());
}

TEST_F(Convert, DoesNotReplaceItsOwnInput) {
  options_.overwrite = true;
  checkpoint_.write(options_.checkpoint);
  std::string input;
  for (const auto& entry : std::filesystem::directory_iterator(options_.checkpoint)) {
    if (entry.path().extension() == ".safetensors") input = entry.path();
  }
  const auto size = std::filesystem::file_size(input);
  std::filesystem::create_symlink(input, folder_ + "/link");
  for (const std::string& output :
       {input, options_.checkpoint + "/../checkpoint/config.json", folder_ + "/link"}) {
    options_.output = output;
    const auto result = convert_model(options_);
    ASSERT_FALSE(result) << output;
    EXPECT_THAT(result.error().message, HasSubstr("is a file that is read"));
  }
  EXPECT_EQ(std::filesystem::file_size(input), size);
}

TEST_F(Convert, AnInterruptLeavesNothing) {
  for (const int polls : {0, 1, 20}) {
    int left = polls;
    options_.cancelled = [&] { return left-- == 0; };
    EXPECT_EQ(error(), "interrupted") << polls;
  }
}

TEST_F(Convert, NamesTheTensorThatIsWrong) {
  const CheckpointFixture good;
  const std::pair<std::function<void(CheckpointFixture&)>, const char*> cases[] = {
      {[](auto& c) { c.tensors.erase("layers.1.attn.wkv.weight"); },
       "has no tensor layers.1.attn.wkv.weight"},
      {[](auto& c) { c.tensors.erase("layers.0.ffn.experts.1.w2.scale"); },
       "has no tensor layers.0.ffn.experts.1.w2.scale"},
      {[](auto& c) { c.tensors["layers.0.attn_norm.weight"].shape = {2, 64}; },
       "layers.0.attn_norm.weight has shape [2, 64], expected [128]"},
      {[](auto& c) { c.tensors["layers.0.attn.wq_a.weight"].type = "U8"; },
       "layers.0.attn.wq_a.weight has type U8, expected F32, F16, BF16, F8_E4M3 or I8 (packed FP4)"},
      {[](auto& c) { c.tensors["layers.0.attn.wq_a.scale"].type = "U8"; },
       "layers.0.attn.wq_a.scale has type U8, expected F8_E8M0"},
      {[](auto& c) { c.tensors["layers.1.ffn.experts.0.w1.scale"].shape = {4, 128}; },
       "layers.1.ffn.experts.0.w1.scale has shape [4, 128], expected [128, 4]"},
      {[](auto& c) { c.tensors["layers.0.ffn.gate.tid2eid"].type = "F64"; },
       "layers.0.ffn.gate.tid2eid has type F64, expected I64 or I32"},
      {[](auto& c) { c.tensors["layers.0.ffn.gate.tid2eid"].bytes[8] = 2; },
       "layers.0.ffn.gate.tid2eid names expert 2, but there are 2 experts"},
      {[](auto& c) { c.tensors["layers.0.ffn.gate.tid2eid"].bytes[15] = '\x80'; }, "names expert -"},
      {[](auto& c) {
         c.tensors["norm.weight"].bytes[1] = '\x7f', c.tensors["norm.weight"].bytes[0] = '\x80';
       },
       "tensor norm.weight, row 0: column 0 holds a value that is not finite"},
  };
  for (const auto& [change, message] : cases) {
    checkpoint_ = good;
    change(checkpoint_);
    EXPECT_THAT(error(), HasSubstr(message));
  }
}

TEST_F(Convert, AMissingMtpBlockIsAnErrorOnlyIfItWasAskedFor) {
  checkpoint_.tensors.erase("mtp.0.enorm.weight");
  EXPECT_TRUE(convert());
  options_.overwrite = true;
  options_.mtp_output = folder_ + "/mtp.gguf";
  std::filesystem::remove(options_.output);
  EXPECT_THAT(error(), HasSubstr("has no tensor mtp.0.enorm.weight"));
}

TEST_F(Convert, ValuesTooLargeForATypeAreRefused) {
  auto& bytes = checkpoint_.tensors["embed.weight"].bytes;
  bytes[0] = '\x00';  // BF16 0x4780 = 65536
  bytes[1] = '\x47';
  bytes[0] = '\x80';
  options_.recipe = Preset::f16;
  EXPECT_THAT(error(),
              HasSubstr("tensor embed.weight, row 0: column 0 holds the value 65536, too large for F16"));
  options_.recipe = Preset::bf16;
  EXPECT_TRUE(convert());
}

TEST_F(Convert, ConfigMistakesNameTheKey) {
  struct Case {
    const char *from, *to, *message;
  };
  const std::string good = checkpoint_.config;
  for (const Case& c : {
           Case{"deepseek_v4", "deepseek_v3", "model_type is \"deepseek_v3\", but must be \"deepseek_v4\""},
           Case{"\"head_dim\": 512", "\"head_dim\": 128", "head_dim is 128, but must be 512"},
           Case{"\"hc_eps\": 1e-06", "\"hc_eps\": 1e-05", "hc_eps is 1e-05"},
           Case{"\"swiglu_limit\": 10.0, ", "", "swiglu_limit is missing"},
           Case{"\"norm_topk_prob\": true", "\"norm_topk_prob\": 1", "norm_topk_prob must be true or false"},
           Case{"sqrtsoftplus", "sigmoid", "scoring_func is \"sigmoid\""},
           Case{"\"type\": \"yarn\"", "\"type\": \"linear\"", "rope_scaling type is \"linear\""},
           Case{"\"factor\": 16", "\"factor\": 40", "factor is 40, but must be 16"},
           Case{"\"hidden_size\": 128", "\"hidden_size\": -1", "hidden_size must be a non-negative"},
           Case{"\"hidden_size\": 128", "\"hidden_size\": 100", "embedding_length is 100"},
           Case{"\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 3",
                "expert_used_count 3 is more than"},
           Case{"[0, 4, 128, 0]", "[0, 4]", "compress_ratios has 2 values for 3 layers"},
           Case{"[0, 4, 128, 0]", "[0, 4, 100, 0]", "compress_ratios of layer 2 is 100"},
           Case{"\"max_position_embeddings\": 1048576", "\"max_position_embeddings\": 1",
                "max_position_embeddings 1 leaves no room"},
           Case{"\"eos_token_id\": 1", "\"eos_token_id\": 300", "token id 300 is outside"},
           Case{"{\"model_type\"", "[\"model_type\"", "not valid JSON"},
       }) {
    checkpoint_.config = good;
    CheckpointFixture::replace(checkpoint_.config, c.from, c.to);
    EXPECT_THAT(error(), HasSubstr(c.message));
  }
}

TEST_F(Convert, TokenizerMistakesAreNamed) {
  struct Case {
    const char *from, *to, *message;
  };
  const std::string good = checkpoint_.tokenizer;
  for (const Case& c : {
           Case{"\"BPE\"", "\"WordPiece\"", "model type is \"WordPiece\""},
           Case{"\"b\": 3", "\"b\": 2", "have the same id 2"},
           Case{"\"b\": 3", "\"b\": 300", "outside the vocabulary of 300"},
           Case{"\"b\": 3", "\"b\": \"3\"", "is not a number"},
           Case{"</think>", "</thing>", "special token </think> is missing"},
           Case{"\"a b\"", "\"ab\"", "merge 0 is not a pair"},
           Case{"[\"b\", \"a\"]", "[\"b\"]", "merge 1 is not a pair"},
           Case{"\"merges\"", "\"murges\"", "merges is missing"},
       }) {
    checkpoint_.tokenizer = good;
    CheckpointFixture::replace(checkpoint_.tokenizer, c.from, c.to);
    EXPECT_THAT(error(), HasSubstr(c.message));
  }
}

TEST_F(Convert, Mxfp4HoldsTheCodesAndScalesOfFp4) {
  options_.recipe = Preset::mxfp4;
  ASSERT_TRUE(convert());
  const GgufFile file = open(options_.output);
  for (const char* name : {"blk.0.ffn_gate_exps.weight", "blk.2.ffn_down_exps.weight"}) {
    const auto* tensor = file.find_tensor(name);
    EXPECT_EQ(tensor->type, TensorType::mxfp4);
    EXPECT_EQ(decoded(*tensor), expected(name)) << name;
    const auto& scales =
        checkpoint_.tensors.at(fmt::format("layers.{}.ffn.experts.0.w{}.scale", name[4],
                                           std::string_view(name).find("gate") != std::string::npos ? 1 : 2));
    for (size_t block = 0; block < scales.bytes.size(); ++block)
      ASSERT_EQ(static_cast<char>(tensor->data[17 * block]), scales.bytes[block]) << name << " " << block;
  }
  checkpoint_.tensors["layers.1.ffn.experts.1.w1.scale"].bytes[3] = '\xff';
  options_.overwrite = true;
  std::filesystem::remove(options_.output);
  EXPECT_THAT(error(), HasSubstr("tensor layers.1.ffn.experts.1.w1.weight, row 0: a scale is not a number"));
}

TEST_F(Convert, BlocksMustFitTheRows) {
  options_.recipe = Preset::q4;
  EXPECT_THAT(error(), HasSubstr("blk.0.ffn_gate_exps.weight has rows of 128 values"));
}

TEST_F(Convert, AMissingFolderIsNamed) {
  options_.checkpoint = folder_ + "/nowhere";
  const auto result = convert_model(options_);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr(options_.checkpoint + "/config.json"));
}

}  // namespace
}  // namespace ds4::quantize
