// Conversions to formats that search scales: importance, threads, plans, recipes, other sources, resuming.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "convert_fixture.hpp"
#include "fingerprint.hpp"
#include "format/imatrix.hpp"
#include "model/weights.hpp"

namespace ds4::quantize {
namespace {

using format::GgufFile;
using format::TensorType;
using ::testing::HasSubstr;

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
  EXPECT_EQ(*file.get_string("quantize.imatrix.file"),
            std::filesystem::path(options_.imatrix).filename().string());
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

TEST_F(ConvertBlocks, ImportanceIsCheckedBeforeAnythingIsWritten) {
  format::Imatrix imatrix = importance();
  imatrix.entries["blk.2.ffn_down_exps.weight"].pop_back();
  write_imatrix(imatrix);
  options_.recipe = Preset::q2;
  options_.resume = true;  // a file that was begun would stay
  EXPECT_THAT(error(), HasSubstr("has 511 values"));
  imatrix = importance();
  imatrix.entries.erase("blk.2.ffn_down_exps.weight");
  write_imatrix(imatrix);
  options_.imatrix_strict = true;
  EXPECT_THAT(error(), HasSubstr("no vector for tensor blk.2.ffn_down_exps.weight"));
  options_.dry_run = true;
  EXPECT_THAT(error(), HasSubstr("no vector for tensor blk.2.ffn_down_exps.weight"));
}

TEST_F(ConvertBlocks, ImportanceThatIsMissingOrNotUsedIsSaid) {
  std::vector<std::string> notices;
  options_.notice = [&](const std::string& sentence) { notices.push_back(sentence); };
  options_.recipe = Preset::q2;
  options_.overwrite = true;
  format::Imatrix imatrix = importance();
  write_imatrix(imatrix);
  ASSERT_TRUE(convert());
  EXPECT_THAT(notices, ::testing::IsEmpty());
  imatrix.entries.erase("blk.0.ffn_up_exps.weight");
  imatrix.entries.erase("blk.2.ffn_up_exps.weight");
  write_imatrix(imatrix);
  ASSERT_TRUE(convert());
  EXPECT_THAT(notices, ::testing::ElementsAre(HasSubstr(
                           "no vectors for 2 of 9 tensors that could use them: blk.0.ffn_up_exps.weight")));
  notices.clear();
  options_.recipe = Preset::q8;
  ASSERT_TRUE(convert());
  EXPECT_THAT(notices, ::testing::ElementsAre(HasSubstr("no tensor uses")));
  notices.clear();
  options_.embed_imatrix = true;
  ASSERT_TRUE(convert());
  EXPECT_THAT(notices, ::testing::IsEmpty());
}

TEST_F(ConvertBlocks, ADryRunSaysWhatWouldBeInTheWay) {
  std::vector<std::string> notices;
  options_.notice = [&](const std::string& sentence) { notices.push_back(sentence); };
  options_.recipe = Preset::q2;
  ASSERT_TRUE(convert());
  const std::string before = bytes(options_.output);
  options_.dry_run = true;
  ASSERT_TRUE(convert());
  EXPECT_THAT(notices, ::testing::ElementsAre(HasSubstr("exists already; use --overwrite")));
  notices.clear();
  options_.overwrite = true;
  ASSERT_TRUE(convert());
  EXPECT_THAT(notices, ::testing::IsEmpty());
  EXPECT_TRUE(bytes(options_.output) == before);
}

TEST_F(ConvertBlocks, ImportanceOfAnotherModelIsAnError) {
  const format::Imatrix imatrix = importance();
  format::Imatrix other;
  for (const auto& [name, values] : imatrix.entries) other.entries["model." + name] = values;
  options_.recipe = Preset::q2;
  for (const format::Imatrix& wrong : {other, format::Imatrix()}) {
    write_imatrix(wrong);
    EXPECT_THAT(error(), HasSubstr("is for a tensor of this model"));
  }
  // Vectors of what this recipe does not search for codes are no mistake.
  other.entries["blk.0.attn_kv.weight"] = std::vector<float>(256, 1.0f);
  write_imatrix(other);
  EXPECT_TRUE(convert());
}

TEST_F(ConvertBlocks, NothingThatIsReadIsDestroyed) {
  write_imatrix(importance());
  options_.recipe = Preset::f16;
  ASSERT_TRUE(convert());
  const std::string source = folder_ + "/out.gguf.tmp", model = bytes(options_.output);
  std::filesystem::rename(options_.output, source);
  std::filesystem::copy_file(options_.imatrix, folder_ + "/im.tmp");
  std::ofstream(folder_ + "/recipe.txt") << "base q2\n";
  const std::string recipe = folder_ + "/recipe.txt", vectors = folder_ + "/im.tmp";
  options_.checkpoint.clear();
  options_.gguf = source;
  options_.overwrite = true;
  options_.recipe = Preset::q2;
  options_.imatrix = vectors;
  options_.recipe_file = recipe;
  const size_t before = files();
  for (const char* output : {"/out.gguf", "/im", "/recipe.txt"}) {
    options_.output = folder_ + output;
    const auto result = convert_model(options_);
    ASSERT_FALSE(result) << output;
    EXPECT_THAT(result.error().message, HasSubstr("is a file that is read"));
  }
  EXPECT_EQ(files(), before);
  EXPECT_TRUE(bytes(source) == model);
  // A link where the work in progress would stand leads to somebody else's file.
  std::filesystem::create_symlink(recipe, folder_ + "/linked.gguf.tmp");
  options_.recipe_file.clear();
  options_.output = folder_ + "/linked.gguf";
  EXPECT_FALSE(convert_model(options_));
  EXPECT_EQ(bytes(recipe), "base q2\n");
}

TEST_F(ConvertBlocks, TheNameOfAPartOfAModelIsRefused) {
  options_.output = folder_ + "/model-00001-of-00002.gguf";
  EXPECT_THAT(error(), HasSubstr("is the name of one of several files of a model"));
  options_.output = folder_ + "/model-00001-of-00001.gguf";
  options_.recipe = Preset::q2;
  ASSERT_TRUE(convert());
  open(options_.output);
}

TEST_F(ConvertBlocks, AChecksumThatIsThereStaysTrue) {
  options_.recipe = Preset::q2;
  options_.checksums = true;
  ASSERT_TRUE(convert());
  const std::string path = options_.output + ".sha256", first = bytes(path);
  options_.checksums = false;
  options_.overwrite = true;
  options_.recipe = Preset::q4;
  ASSERT_TRUE(convert());
  EXPECT_NE(bytes(path), first);
  EXPECT_EQ(bytes(path), file_sha256(options_.output).value() + "  model.gguf\n");
  // Other files of this name are none of ours.
  std::ofstream(path) << "notes\n";
  ASSERT_TRUE(convert());
  EXPECT_EQ(bytes(path), "notes\n");
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
  const GgufFile b = open(from_gguf.gguf), c = open(from_gguf.output);
  for (const auto& tensor : b.tensors())
    EXPECT_EQ(std::memcmp(tensor.data, c.find_tensor(tensor.name)->data, tensor.size_bytes), 0)
        << tensor.name;
  from_gguf.recipe = Preset::q8;
  ASSERT_TRUE(convert_model(from_gguf));
  EXPECT_FALSE(open(from_gguf.output).find("quantize.recipe"));
}

TEST_F(ConvertBlocks, DamagedWeightsOfAGgufFileAreNotCopied) {
  options_.recipe = Preset::f32;
  ASSERT_TRUE(convert());
  std::string damaged = bytes(options_.output);
  damaged.replace(damaged.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));  // NaN
  ConvertOptions options;
  options.gguf = folder_ + "/damaged.gguf";
  options.output = folder_ + "/out.gguf";
  std::ofstream(options.gguf, std::ios::binary) << damaged;
  for (const Preset preset : {Preset::f32, Preset::q8, Preset::q2}) {
    options.recipe = preset;
    const auto result = convert_model(options);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::not_finite);
    EXPECT_THAT(result.error().message,
                HasSubstr("damaged.gguf: tensor blk.2.ffn_down_shexp.weight, row 255: column 255 holds"));
    EXPECT_FALSE(std::filesystem::exists(options.output));
  }
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

TEST_F(ConvertBlocks, ResumesAfterAnInterrupt) {
  options_.recipe = Preset::q2;
  options_.mtp_output = folder_ + "/mtp.gguf";
  ASSERT_TRUE(convert());
  const std::string whole = bytes(options_.output), whole_mtp = bytes(options_.mtp_output);
  std::filesystem::remove(options_.output);
  std::filesystem::remove(options_.mtp_output);
  options_.resume = true;
  size_t interrupts = 0, resumed = 0;
  for (;;) {
    int left = 40;
    options_.cancelled = [&] { return left-- == 0; };
    const auto summary = convert();
    if (summary) {
      EXPECT_GE(summary->resumed_tensors, resumed);
      EXPECT_GT(summary->resumed_tensors, 0u);
      break;
    }
    EXPECT_EQ(summary.error().code, ErrorCode::cancelled);
    EXPECT_TRUE(std::filesystem::exists(options_.output + ".tmp"));
    EXPECT_FALSE(std::filesystem::exists(options_.output));
    ASSERT_LT(++interrupts, 20u);
  }
  EXPECT_GT(interrupts, 1u);
  EXPECT_TRUE(bytes(options_.output) == whole);
  EXPECT_TRUE(bytes(options_.mtp_output) == whole_mtp);
}

TEST_F(ConvertBlocks, AnotherSourceIsNotContinued) {
  options_.recipe = Preset::q2;
  options_.resume = true;
  int left = 60;
  options_.cancelled = [&] { return left-- == 0; };
  ASSERT_FALSE(convert());
  options_.cancelled = {};
  options_.resume = false;
  const auto anew = convert();
  ASSERT_FALSE(anew);
  EXPECT_THAT(anew.error().message, HasSubstr("--resume continues it, --overwrite discards it"));
  options_.resume = true;
  checkpoint_.tensors["embed.weight"].bytes[0] ^= 1;
  const std::string part = bytes(options_.output + ".tmp");
  const auto refused = convert();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("--overwrite discards it"));
  EXPECT_TRUE(bytes(options_.output + ".tmp") == part) << "the work of the earlier run is kept";
  options_.overwrite = true;
  const auto summary = convert();
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(summary->resumed_tensors, 0u);
}

TEST_F(ConvertBlocks, ChecksumsAreThoseOfTheFiles) {
  options_.checksums = true;
  ASSERT_TRUE(convert());
  const auto expected_hash = file_sha256(options_.output);
  ASSERT_TRUE(expected_hash);
  EXPECT_EQ(bytes(options_.output + ".sha256"), *expected_hash + "  model.gguf\n");
  std::ofstream(folder_ + "/abc") << "abc";
  EXPECT_EQ(*file_sha256(folder_ + "/abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(ConvertBlocks, AnInterruptLeavesNothing) {
  options_.recipe = Preset::q2;
  for (const int polls : {0, 3, 100}) {
    int left = polls;
    options_.cancelled = [&] { return left-- == 0; };
    EXPECT_EQ(error(), "interrupted") << polls;
  }
}

}  // namespace
}  // namespace ds4::quantize
