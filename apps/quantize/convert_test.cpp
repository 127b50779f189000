#include "convert.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "checkpoint_fixture.hpp"
#include "format/gguf.hpp"
#include "format/imatrix.hpp"
#include "format/number_formats.hpp"
#include "model/weights.hpp"

namespace ds4::quantize {
namespace {

using format::GgufFile;
using format::TensorType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Convert : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "ds4_convert_" + test->name();
    std::filesystem::remove_all(folder_);
    options_.checkpoint = folder_ + "/checkpoint";
    options_.output = folder_ + "/model.gguf";
    options_.recipe = Preset::f32;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<ConvertSummary> convert() {
    checkpoint_.write(options_.checkpoint);
    return convert_model(options_);
  }

  std::string error() {
    const auto result = convert();
    EXPECT_EQ(files(), 1u) << "only the checkpoint may be there after a failure";
    return result ? "no error" : result.error().message;
  }

  size_t files() const {
    const std::filesystem::directory_iterator begin(folder_);
    return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
  }

  GgufFile open(const std::string& path) {
    auto file = GgufFile::open(path);
    EXPECT_TRUE(file) << file.error().message;
    return std::move(file).value();
  }

  // The values that the checkpoint holds for a GGUF tensor, experts one after the other.
  std::vector<float> expected(std::string_view gguf_name) const {
    const std::string name = checkpoint_name(gguf_name);
    if (name.find("{}") == std::string::npos) return checkpoint_.values.at(name);
    std::vector<float> all;
    for (uint32_t e = 0; e < checkpoint_.shape.experts; ++e) {
      const auto& values = checkpoint_.values.at(fmt::format(fmt::runtime(name), e));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  static std::vector<float> decoded(const format::GgufTensor& tensor) {
    std::vector<float> values(tensor.elements());
    if (tensor.type != TensorType::i32) {
      format::decode_row(tensor.type, tensor.data, values.size(), values.data());
      return values;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      int32_t value = 0;
      std::memcpy(&value, tensor.data + i * sizeof value, sizeof value);
      values[i] = static_cast<float>(value);
    }
    return values;
  }

  CheckpointFixture checkpoint_;
  ConvertOptions options_;
  std::string folder_;
};

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
    EXPECT_THAT(result.error().message, HasSubstr("is a file of the checkpoint"));
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

class ConvertBlocks : public Convert {
 protected:
  ConvertBlocks() { checkpoint_ = CheckpointFixture(256); }

  std::string bytes(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  // One vector for each expert of every layer, so that a wrong slice shows.
  format::Imatrix importance() const {
    format::Imatrix imatrix;
    for (uint32_t layer = 0; layer < checkpoint_.shape.layers; ++layer) {
      for (const char* part : {"gate", "up", "down"}) {
        std::vector<float> values(256 * checkpoint_.shape.experts);
        for (size_t i = 0; i < values.size(); ++i)
          values[i] =
              std::exp(std::sin(static_cast<float>(i * (layer + 1)) * (part[0] == 'd' ? 0.7f : 0.3f)));
        imatrix.entries[fmt::format("blk.{}.ffn_{}_exps.weight", layer, part)] = values;
      }
    }
    imatrix.dataset = "calibration.txt";
    imatrix.chunks = 12;
    return imatrix;
  }

  void write_imatrix(const format::Imatrix& imatrix) {
    options_.imatrix = ::testing::TempDir() + "ds4_convert.dat";
    std::ofstream(options_.imatrix, std::ios::binary) << format::serialize_imatrix(imatrix).value();
  }
};

TEST_F(ConvertBlocks, TheNumberOfThreadsDoesNotShow) {
  std::string first;
  options_.overwrite = true;
  options_.recipe = Preset::q2;
  for (const unsigned threads : {1u, 2u, 3u, 7u}) {
    options_.threads = threads;
    const auto summary = convert();
    ASSERT_TRUE(summary) << summary.error().message;
    const std::string now = bytes(options_.output);
    EXPECT_EQ(now.size(), summary->file_bytes);
    if (first.empty()) first = now;
    EXPECT_TRUE(now == first) << threads;
  }
}

TEST_F(ConvertBlocks, ADryRunSaysHowLargeTheFilesWillBe) {
  options_.recipe = Preset::q2_q4;
  options_.mtp_output = folder_ + "/mtp.gguf";
  options_.dry_run = true;
  const auto plan = convert();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(files(), 1u);
  EXPECT_THAT(plan->plan, HasSubstr("blk.0.ffn_gate_exps.weight"));
  EXPECT_THAT(plan->plan, HasSubstr("FP4 -> IQ2_XXS"));
  EXPECT_THAT(plan->plan, HasSubstr(fmt::format("file of {} bytes", plan->file_bytes)));
  options_.dry_run = false;
  ASSERT_TRUE(convert());
  EXPECT_EQ(std::filesystem::file_size(options_.output), plan->file_bytes);
  EXPECT_EQ(std::filesystem::file_size(options_.mtp_output), plan->mtp_file_bytes);
}

TEST_F(ConvertBlocks, ExpertsAreEncodedWithTheirOwnImportance) {
  const format::Imatrix imatrix = importance();
  write_imatrix(imatrix);
  options_.recipe = Preset::q2;
  options_.imatrix_strict = true;
  ASSERT_TRUE(convert());
  const GgufFile file = open(options_.output);
  EXPECT_EQ(*file.get_string("quantize.recipe"), "q2");
  EXPECT_EQ(*file.get_string("quantize.imatrix.file"), options_.imatrix);
  EXPECT_EQ(*file.get_string("quantize.imatrix.dataset"), "calibration.txt");
  EXPECT_EQ(*file.get_uint("quantize.imatrix.entries_count"), 9u);
  EXPECT_EQ(*file.get_uint("quantize.imatrix.chunks_count"), 12u);
  for (const auto& tensor : file.tensors()) {
    if (tensor.name.find("_exps.") == std::string_view::npos) continue;
    const auto& raw = imatrix.entries.at(std::string(tensor.name));
    const std::vector<float> values = expected(tensor.name);
    const size_t row_bytes = format::row_bytes(tensor.type, 256), rows = 256;
    for (size_t expert = 0; expert < 2; ++expert) {
      const auto weights = format::prepare_importance(std::span(raw).subspan(256 * expert, 256)).value();
      for (size_t row = rows * expert; row < rows * (expert + 1); ++row) {
        std::vector<std::byte> out(row_bytes);
        ASSERT_TRUE(format::encode_weighted_row(tensor.type, values.data() + 256 * row, 256, weights.data(),
                                                out.data()));
        ASSERT_EQ(std::memcmp(out.data(), tensor.data + row * row_bytes, row_bytes), 0)
            << tensor.name << " row " << row;
      }
    }
  }
}

TEST_F(ConvertBlocks, ImportanceThatDoesNotFitIsAnError) {
  format::Imatrix imatrix = importance();
  imatrix.entries["blk.1.ffn_down_exps.weight"].pop_back();
  write_imatrix(imatrix);
  options_.recipe = Preset::q2;
  EXPECT_THAT(error(),
              HasSubstr("\"blk.1.ffn_down_exps.weight\" has 511 values for 256 columns and 2 experts"));
  imatrix = importance();
  imatrix.entries.erase("blk.2.ffn_up_exps.weight");
  write_imatrix(imatrix);
  ASSERT_TRUE(convert());
  std::filesystem::remove(options_.output);
  options_.imatrix_strict = true;
  EXPECT_THAT(error(), HasSubstr("no vector for tensor blk.2.ffn_up_exps.weight"));
}

TEST_F(ConvertBlocks, WithoutImportanceIq2XxsTakesTheEnergyOfColumns) {
  options_.recipe = Preset::q2;
  ASSERT_TRUE(convert());
  const GgufFile file = open(options_.output);
  const auto* tensor = file.find_tensor("blk.1.ffn_up_exps.weight");
  const std::vector<float> values = expected(tensor->name);
  std::vector<float> energies(256);
  for (size_t c = 0; c < 256; ++c) {
    double sum = 0;
    for (size_t row = 256; row < 512; ++row)
      sum += double{values[256 * row + c]} * double{values[256 * row + c]};
    energies[c] = static_cast<float>(sum);
  }
  const auto weights = format::prepare_importance(energies).value();
  for (size_t row = 256; row < 512; ++row) {
    std::byte out[66];
    ASSERT_TRUE(format::encode_weighted_row(TensorType::iq2_xxs, values.data() + 256 * row, 256,
                                            weights.data(), out));
    ASSERT_EQ(std::memcmp(out, tensor->data + row * 66, 66), 0) << row;
  }
}

TEST_F(ConvertBlocks, AGgufFileIsASourceToo) {
  options_.recipe = Preset::f32;
  ASSERT_TRUE(convert());
  ConvertOptions from_checkpoint = options_, from_gguf = options_;
  from_gguf.checkpoint.clear();
  from_gguf.gguf = options_.output;
  for (const Preset preset : {Preset::q8, Preset::q4, Preset::q2}) {
    from_checkpoint.recipe = from_gguf.recipe = preset;
    from_checkpoint.output = folder_ + "/a.gguf";
    from_gguf.output = folder_ + "/b.gguf";
    from_checkpoint.overwrite = from_gguf.overwrite = true;
    ASSERT_TRUE(convert_model(from_checkpoint));
    const auto summary = convert_model(from_gguf);
    ASSERT_TRUE(summary) << summary.error().message;
    const GgufFile a = open(from_checkpoint.output), b = open(from_gguf.output);
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    for (const auto& tensor : a.tensors()) {
      const auto* other = b.find_tensor(tensor.name);
      ASSERT_TRUE(other && other->type == tensor.type && other->size_bytes == tensor.size_bytes)
          << tensor.name;
      EXPECT_EQ(std::memcmp(tensor.data, other->data, tensor.size_bytes), 0) << tensor.name;
    }
    EXPECT_EQ(a.metadata().size(), b.metadata().size());
    for (const auto& [key, value] : a.metadata()) EXPECT_TRUE(b.find(key)) << key;
  }
  // What has its format already is copied; how the source was made is not said of the result.
  from_gguf.gguf = folder_ + "/b.gguf";
  from_gguf.output = folder_ + "/c.gguf";
  ASSERT_TRUE(convert_model(from_gguf));
  EXPECT_TRUE(bytes(from_gguf.output) == bytes(from_gguf.gguf));
  from_gguf.recipe = Preset::q8;
  ASSERT_TRUE(convert_model(from_gguf));
  EXPECT_FALSE(open(from_gguf.output).find("quantize.recipe"));
}

TEST_F(ConvertBlocks, RulesOfARecipeFileDecide) {
  auto recipe = Recipe::parse("base q8\nblk.{1-2}.ffn_*_exps.weight q4_k\ntoken_embd.weight q8_0\n", "r");
  ASSERT_TRUE(recipe) << recipe.error().message;
  options_.recipe = *recipe;
  ASSERT_TRUE(convert());
  const GgufFile file = open(options_.output);
  EXPECT_EQ(*file.get_string("quantize.recipe"), "q8 + 2 rules");
  EXPECT_EQ(file.find_tensor("token_embd.weight")->type, TensorType::q8_0);
  EXPECT_EQ(file.find_tensor("blk.0.ffn_up_exps.weight")->type, TensorType::q8_0);
  EXPECT_EQ(file.find_tensor("blk.2.ffn_down_exps.weight")->type, TensorType::q4_k);
  const auto shape = model::read_shape(file, nullptr);
  ASSERT_TRUE(shape);
  EXPECT_TRUE(model::bind_weights(file, *shape));
}

TEST_F(ConvertBlocks, AnInterruptLeavesNothing) {
  options_.recipe = Preset::q2;
  for (const int polls : {0, 3, 100}) {
    int left = polls;
    options_.cancelled = [&] { return left-- == 0; };
    EXPECT_EQ(error(), "interrupted") << polls;
  }
}

TEST_F(Convert, AMissingFolderIsNamed) {
  options_.checkpoint = folder_ + "/nowhere";
  const auto result = convert_model(options_);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr(options_.checkpoint + "/config.json"));
}

}  // namespace
}  // namespace ds4::quantize
