// Expert layers of one file in another: which tensors come from where, what the result says, what is refused.
#include "splice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "convert_fixture.hpp"
#include "model/weights.hpp"

namespace ds4::quantize {
namespace {

using format::GgufFile;
using format::TensorType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Spliced : public Convert {
 protected:
  Spliced() { checkpoint_ = CheckpointFixture(256); }
  void SetUp() override {
    Convert::SetUp();
    q2_ = make("q2.gguf", Preset::q2);
    q4_ = make("q4.gguf", Preset::q4);
    splice_ = {.base = q2_, .donor = q4_, .output = folder_ + "/out.gguf", .layers = "1-2"};
  }

  std::string make(const std::string& name, Recipe recipe) {
    options_.output = folder_ + "/" + name;
    options_.recipe = std::move(recipe);
    const auto made = convert();
    EXPECT_TRUE(made) << made.error().message;
    return options_.output;
  }

  std::string error() {
    const size_t before = files();
    const auto result = splice_models(splice_);
    EXPECT_EQ(files(), before) << "a failure must leave nothing";
    return result ? "no error" : result.error().message;
  }

  std::string q2_, q4_;
  SpliceOptions splice_;
};

bool is_expert_of(std::string_view name, std::string_view layer) {
  return name.starts_with(layer) && name.find("_exps.") != std::string_view::npos;
}

TEST_F(Spliced, ExpertsComeFromTheDonorAllElseFromTheBase) {
  const auto summary = splice_models(splice_);
  ASSERT_TRUE(summary) << summary.error().message;
  const GgufFile base = open(q2_), donor = open(q4_), out = open(splice_.output);
  ASSERT_EQ(out.tensors().size(), base.tensors().size());
  size_t donated = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < out.tensors().size(); ++i) {
    const auto& tensor = out.tensors()[i];
    const bool from_donor = is_expert_of(tensor.name, "blk.1.") || is_expert_of(tensor.name, "blk.2.");
    const auto* expected = (from_donor ? donor : base).find_tensor(tensor.name);
    EXPECT_EQ(tensor.name, base.tensors()[i].name) << "order of the base";
    ASSERT_EQ(tensor.type, expected->type) << tensor.name;
    ASSERT_EQ(tensor.dims, expected->dims) << tensor.name;
    EXPECT_EQ(std::memcmp(tensor.data, expected->data, tensor.size_bytes), 0) << tensor.name;
    donated += from_donor;
    bytes += tensor.size_bytes;
  }
  EXPECT_EQ(donated, 6u);
  EXPECT_EQ(summary->donated, 6u);
  EXPECT_EQ(summary->tensor_bytes, bytes);
  EXPECT_EQ(summary->file_bytes, std::filesystem::file_size(splice_.output));
  EXPECT_EQ(out.find_tensor("blk.0.ffn_gate_exps.weight")->type, TensorType::iq2_xxs);
  EXPECT_EQ(out.find_tensor("blk.2.ffn_gate_exps.weight")->type, TensorType::q4_k);
  const auto shape = model::read_shape(out, nullptr);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_TRUE(model::bind_weights(out, *shape));
}

TEST_F(Spliced, TheResultSaysHowItWasMadeAlsoTheSecondTime) {
  ASSERT_TRUE(splice_models(splice_));
  splice_.base = splice_.output;
  splice_.output = folder_ + "/again.gguf";
  splice_.layers = "0";
  ASSERT_TRUE(splice_models(splice_));
  const GgufFile out = open(splice_.output), base = open(q2_), donor = open(q4_);
  const auto list = [&](const char* key) {
    const auto values = out.get_string_array(key);
    EXPECT_TRUE(values) << key;
    return std::vector<std::string>(values->begin(), values->end());
  };
  EXPECT_THAT(list("quantize.splice.layers"), ElementsAre("1-2", "0"));
  EXPECT_THAT(list("quantize.splice.donor"), ElementsAre("q4.gguf", "q4.gguf"));
  EXPECT_THAT(list("quantize.splice.recipe"), ElementsAre("q4", "q4"));
  const std::string fingerprint(donor.get_string("quantize.source.fingerprint").value());
  EXPECT_THAT(list("quantize.splice.fingerprint"), ElementsAre(fingerprint, fingerprint));
  for (const auto& [key, value] : base.metadata()) EXPECT_TRUE(out.find(key)) << key;
}

TEST_F(Spliced, ADryRunWritesNothing) {
  splice_.output.clear();
  splice_.dry_run = true;
  const size_t before = files();
  const auto summary = splice_models(splice_);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(files(), before);
  EXPECT_THAT(summary->changes, ElementsAre(std::pair<std::string, size_t>("IQ2_XXS -> Q4_K", 4),
                                            std::pair<std::string, size_t>("Q2_K -> Q4_K", 2)));
  splice_.dry_run = false;
  splice_.output = folder_ + "/out.gguf";
  ASSERT_TRUE(splice_models(splice_));
  EXPECT_EQ(std::filesystem::file_size(splice_.output), summary->file_bytes);
}

TEST_F(Spliced, AnotherModelIsRefused) {
  const CheckpointFixture good = checkpoint_;
  checkpoint_.tensors["layers.2.ffn_norm.weight"].bytes[0] ^= 1;
  splice_.donor = make("other.gguf", Preset::q4);
  EXPECT_THAT(error(), HasSubstr("do not hold one model: tensor blk.2.ffn_norm.weight has different values"));
  checkpoint_ = good;
  CheckpointFixture::replace(checkpoint_.tokenizer, "\"ab\": 4", "\"ba\": 4");
  options_.overwrite = true;
  make("other.gguf", Preset::q4);
  EXPECT_THAT(error(), HasSubstr("tokenizer.ggml.tokens differs"));
  checkpoint_ = CheckpointFixture(512);
  make("other.gguf", Preset::q4);
  EXPECT_THAT(error(), HasSubstr("do not hold one model: width: 256 and 512"));
}

TEST_F(Spliced, SourcesOfOneModelMayDiffer) {
  make("f32.gguf", Preset::f32);
  options_.gguf = options_.output;
  options_.checkpoint.clear();
  options_.output = folder_ + "/from-gguf.gguf";
  options_.recipe = Preset::q4;
  ASSERT_TRUE(convert_model(options_));
  splice_.donor = options_.output;
  const auto summary = splice_models(splice_);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_TRUE(summary->different_sources);
}

TEST_F(Spliced, FilesAreNotReplacedUnasked) {
  for (const std::string& output : {q2_, q4_}) {
    splice_.output = output;
    splice_.overwrite = false;
    EXPECT_THAT(error(), HasSubstr("--overwrite"));
    splice_.overwrite = true;
    EXPECT_THAT(error(), HasSubstr("is a file that is read"));
  }
}

TEST_F(Spliced, NoPartOfASplitFileIsReplaced) {
  const std::string first = folder_ + "/m-00001-of-00002.gguf", second = folder_ + "/m-00002-of-00002.gguf";
  std::ofstream(first) << "a";
  std::ofstream(second) << "b";
  splice_.donor = first;
  splice_.output = second;
  splice_.overwrite = true;
  EXPECT_THAT(error(), HasSubstr("is a file that is read"));
  options_.checkpoint.clear();
  options_.gguf = second;
  options_.output = first;
  options_.overwrite = true;
  EXPECT_THAT(convert_model(options_).error().message, HasSubstr("is a file that is read"));
}

TEST_F(Spliced, AnInterruptLeavesNothing) {
  for (const int polls : {0, 5, 60}) {
    int polled = 0;
    splice_.cancelled = [&] { return polled++ >= polls; };
    EXPECT_EQ(error(), "interrupted");
  }
}

TEST_F(Spliced, AShortFileIsRefused) {
  std::filesystem::resize_file(q4_, std::filesystem::file_size(q4_) - 100);
  EXPECT_THAT(error(), HasSubstr(q4_));
}

TEST(Layers, ListsAndRanges) {
  EXPECT_THAT(parse_layers("0-2,40-42", 43).value(), ElementsAre(0, 1, 2, 40, 41, 42));
  EXPECT_THAT(parse_layers("5,3,3-4", 43).value(), ElementsAre(3, 4, 5));
  EXPECT_EQ(layers_text(parse_layers("5,3,3-4,9,11-12", 43).value()), "3-5,9,11-12");
  for (const char* bad : {"", ",", "1,", "a", "3-", "4-3", "1-2-3", "-1", "1 2", "99999999999", "+1"})
    EXPECT_THAT(parse_layers(bad, 43).error().message, HasSubstr("a list of layers is expected")) << bad;
  EXPECT_THAT(parse_layers("40-43", 43).error().message, HasSubstr("layers 0 to 42"));
  EXPECT_FALSE(parse_layers("0-4294967295", 43));
}

}  // namespace
}  // namespace ds4::quantize
