// Files with an MTP block only, as source and as result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert_fixture.hpp"
#include "drafter_source.hpp"
#include "format/gguf_writer.hpp"
#include "model/weights.hpp"

namespace ds4::quantize {
namespace {

using format::GgufFile;
using format::TensorType;
using ::testing::HasSubstr;

class Drafter : public Convert {
 protected:
  Drafter() { checkpoint_ = CheckpointFixture(256); }

  void make_both(Preset preset) {
    options_.recipe = preset;
    options_.mtp_output = folder_ + "/mtp.gguf";
    const auto made = convert();
    ASSERT_TRUE(made) << made.error().message;
  }

  static void expect_same_tensors(const GgufFile& a, const GgufFile& b) {
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    for (const auto& tensor : a.tensors()) {
      const auto* other = b.find_tensor(tensor.name);
      ASSERT_TRUE(other && other->type == tensor.type && other->dims == tensor.dims) << tensor.name;
      EXPECT_EQ(std::memcmp(tensor.data, other->data, tensor.size_bytes), 0) << tensor.name;
    }
  }

  /// One file with the model and the drafter, as some tools write it.
  std::string join() {
    const GgufFile model = open(options_.output), drafter = open(options_.mtp_output);
    const std::string path = folder_ + "/joined.gguf";
    format::GgufWriter writer(path);
    for (const auto& [key, value] : model.metadata()) writer.add_value(key, value);
    for (const GgufFile* file : {&model, &drafter}) {
      for (const auto& tensor : file->tensors())
        writer.add_tensor(tensor.name, tensor.type, std::span(tensor.dims).first(tensor.n_dims));
    }
    for (const GgufFile* file : {&model, &drafter}) {
      for (const auto& tensor : file->tensors())
        EXPECT_TRUE(writer.write_tensor({tensor.data, tensor.size_bytes}));
    }
    EXPECT_TRUE(writer.finish());
    return path;
  }
};

TEST_F(Drafter, ItsFileIsASource) {
  make_both(Preset::f32);
  ConvertOptions from_drafter;
  from_drafter.gguf = folder_ + "/source.gguf";
  std::filesystem::rename(options_.mtp_output, from_drafter.gguf);
  from_drafter.output = folder_ + "/out.gguf";
  options_.overwrite = from_drafter.overwrite = true;
  for (const Preset preset : {Preset::q8, Preset::q4, Preset::q2}) {
    from_drafter.recipe = preset;
    const auto summary = convert_model(from_drafter);
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_EQ(summary->tensors, 0u);
    EXPECT_EQ(summary->mtp_tensors, 32u);
    EXPECT_EQ(summary->mtp_file_bytes, std::filesystem::file_size(from_drafter.output));
    make_both(preset);
    const GgufFile expected = open(options_.mtp_output), got = open(from_drafter.output);
    expect_same_tensors(expected, got);
    for (const auto& [key, value] : expected.metadata()) EXPECT_TRUE(got.find(key)) << key;
    EXPECT_TRUE(model::bind_mtp(got, checkpoint_.shape));
  }
}

TEST_F(Drafter, RulesApplyToIt) {
  make_both(Preset::f32);
  ConvertOptions again;
  again.gguf = options_.mtp_output;
  again.mtp_output = folder_ + "/out.gguf";
  again.recipe = Recipe::parse("base q8\nmtp.*_exps.weight iq2_xxs\n", "r.txt").value();
  ASSERT_TRUE(convert_model(again));
  EXPECT_EQ(open(again.mtp_output).find_tensor("mtp.0.ffn_down_exps.weight")->type, TensorType::iq2_xxs);
  again.recipe = Recipe::parse("blk.* q4_k\n", "r.txt").value();
  again.overwrite = true;
  EXPECT_THAT(convert_model(again).error().message, HasSubstr("no tensor that \"blk.*\" fits"));
}

TEST_F(Drafter, OnlyTheDrafterOfACheckpoint) {
  make_both(Preset::q4);
  options_.output.clear();
  options_.mtp_output = folder_ + "/only.gguf";
  const auto summary = convert();
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(summary->tensors, 0u);
  expect_same_tensors(open(folder_ + "/mtp.gguf"), open(folder_ + "/only.gguf"));
}

TEST_F(Drafter, TakenOutOfAModelsFile) {
  make_both(Preset::f32);
  ConvertOptions split;
  split.gguf = join();
  split.recipe = Preset::q4;
  split.output = folder_ + "/all.gguf";
  ASSERT_TRUE(convert_model(split));
  EXPECT_TRUE(model::has_mtp(open(split.output))) << "it stays where it was";
  split.output = folder_ + "/model-only.gguf";
  split.mtp_output = folder_ + "/mtp-only.gguf";
  ASSERT_TRUE(convert_model(split));
  EXPECT_FALSE(model::has_mtp(open(split.output)));
  options_.overwrite = true;
  make_both(Preset::q4);
  expect_same_tensors(open(options_.output), open(split.output));
  expect_same_tensors(open(options_.mtp_output), open(split.mtp_output));
  split.gguf = split.output;
  split.output.clear();
  split.overwrite = true;
  EXPECT_THAT(convert_model(split).error().message, HasSubstr("no MTP block to write"));
}

TEST_F(Drafter, DamagedFilesAreRefused) {
  make_both(Preset::f32);
  ConvertOptions again;
  again.gguf = options_.mtp_output;
  again.recipe = Preset::q4;
  again.output = folder_ + "/out.gguf";
  again.mtp_output = folder_ + "/out2.gguf";
  EXPECT_THAT(convert_model(again).error().message, HasSubstr("not both"));
  again.mtp_output.clear();
  for (const char* left_out : {"mtp.0.enorm.weight", "mtp.0.attn_q_b.weight", "mtp.0.ffn_norm.weight"}) {
    const GgufFile drafter = open(options_.mtp_output);
    again.gguf = folder_ + "/damaged.gguf";
    format::GgufWriter writer(again.gguf);
    writer.add_string("general.architecture", "deepseek4_mtp_support");
    for (const auto& tensor : drafter.tensors()) {
      if (tensor.name != left_out)
        writer.add_tensor(tensor.name, tensor.type, std::span(tensor.dims).first(tensor.n_dims));
    }
    for (const auto& tensor : drafter.tensors()) {
      if (tensor.name == left_out) continue;
      ASSERT_TRUE(writer.write_tensor({tensor.data, tensor.size_bytes}));
    }
    ASSERT_TRUE(writer.finish());
    EXPECT_THAT(convert_model(again).error().message,
                HasSubstr(fmt::format("tensor {} is missing", left_out)));
  }
}

TEST(DrafterFile, OtherDraftersAreNamed) {
  const std::string path = ::testing::TempDir() + "ds4_dspark.gguf";
  const uint64_t dims[] = {32};
  format::GgufWriter writer(path);
  writer.add_string("general.architecture", "deepseek4-dspark");
  writer.add_tensor("mtp.0.main_proj.weight", TensorType::f32, dims);
  ASSERT_TRUE(writer.write_tensor(std::vector<std::byte>(128)));
  ASSERT_TRUE(writer.finish());
  const GgufFile file = GgufFile::open(path).value();
  EXPECT_THAT(is_drafter_file(file).error().message, HasSubstr("DSpark"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace ds4::quantize
