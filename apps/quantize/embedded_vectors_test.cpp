#include "embedded_vectors.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "convert_fixture.hpp"
#include "fingerprint.hpp"
#include "model/weights.hpp"

namespace ds4::quantize {
namespace {

using format::GgufFile;
using ::testing::HasSubstr;

class EmbeddedVectors : public Convert {
 protected:
  EmbeddedVectors() {
    checkpoint_ = CheckpointFixture(256);
    for (uint32_t layer = 0; layer < checkpoint_.shape.layers; ++layer) {
      for (const char* part : {"gate", "up", "down"}) {
        std::vector<float> values(256 * checkpoint_.shape.experts);
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 7 + layer) % 19);
        imatrix_.entries[fmt::format("blk.{}.ffn_{}_exps.weight", layer, part)] = values;
      }
    }
    imatrix_.entries["not of this model"] = {1, 2, 3};
    imatrix_.dataset = "calibration.txt";
    imatrix_.chunks = 12;
  }

  void SetUp() override {
    Convert::SetUp();
    std::filesystem::create_directories(folder_);
    options_.imatrix = folder_ + "/importance.dat";
    std::ofstream(options_.imatrix, std::ios::binary) << format::serialize_imatrix(imatrix_).value();
    options_.recipe = Preset::q2;
    options_.embed_imatrix = true;
  }

  std::string bytes(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  format::Imatrix imatrix_;
};

TEST_F(EmbeddedVectors, CanBeReadBackAndLeaveTheModelAsItIs) {
  ASSERT_TRUE(convert());
  const auto read = format::read_imatrix(options_.output);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->entries, imatrix_.entries);
  EXPECT_EQ(read->dataset, imatrix_.dataset);
  EXPECT_EQ(read->chunks, imatrix_.chunks);

  const GgufFile file = open(options_.output);
  const auto* vectors = file.find_tensor("imatrix.blk.1.ffn_down_exps.weight");
  ASSERT_NE(vectors, nullptr);
  EXPECT_EQ(vectors->dims, (std::array<uint64_t, 4>{256, checkpoint_.shape.experts, 1, 1}));
  EXPECT_FALSE(model::is_weight(*vectors));
  const auto shape = model::read_shape(file, nullptr);
  ASSERT_TRUE(shape);
  EXPECT_TRUE(model::bind_weights(file, *shape));

  // The weights have the bits of a file without the vectors, and the vectors can make them again.
  ConvertOptions plain = options_, again = options_;
  plain.output = folder_ + "/plain.gguf";
  plain.embed_imatrix = false;
  again.imatrix = options_.output;
  again.output = folder_ + "/again.gguf";
  ASSERT_TRUE(convert_model(plain));
  ASSERT_TRUE(convert_model(again));
  const GgufFile plain_file = open(plain.output), again_file = open(again.output);
  size_t weights = 0;
  for (const auto& tensor : file.tensors()) {
    const auto* same = again_file.find_tensor(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    EXPECT_EQ(std::memcmp(tensor.data, same->data, tensor.size_bytes), 0) << tensor.name;
    if (!model::is_weight(tensor)) continue;
    ++weights;
    same = plain_file.find_tensor(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    EXPECT_EQ(std::memcmp(tensor.data, same->data, tensor.size_bytes), 0) << tensor.name;
  }
  EXPECT_EQ(weights, plain_file.tensors().size());
  EXPECT_EQ(file.tensors().size(), weights + imatrix_.entries.size());
  EXPECT_EQ(*file.get_string("quantize.imatrix.fingerprint"),
            *again_file.get_string("quantize.imatrix.fingerprint"));
}

TEST_F(EmbeddedVectors, AreNotCopiedFromASourceUnasked) {
  ASSERT_TRUE(convert());
  ConvertOptions next;
  next.gguf = options_.output;
  next.output = folder_ + "/next.gguf";
  next.recipe = Preset::q8;
  ASSERT_TRUE(convert_model(next));
  const auto read = format::read_imatrix(next.output);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::not_found);
  EXPECT_THAT(read.error().message, HasSubstr("next.gguf: there are no importance vectors"));
}

TEST_F(EmbeddedVectors, APlanCountsThem) {
  options_.dry_run = true;
  const auto plan = convert();
  ASSERT_TRUE(plan) << plan.error().message;
  options_.dry_run = false;
  ASSERT_TRUE(convert());
  EXPECT_EQ(std::filesystem::file_size(options_.output), plan->file_bytes);
}

TEST_F(EmbeddedVectors, AreWrittenAlsoAfterAnInterrupt) {
  ASSERT_TRUE(convert());
  const std::string whole = bytes(options_.output);
  std::filesystem::remove(options_.output);
  // With a drafter after the model, the model's file may be complete but for its name.
  options_.mtp_output = folder_ + "/mtp.gguf";
  options_.resume = true;
  size_t interrupts = 0;
  for (;;) {
    int left = 25;
    options_.cancelled = [&] { return left-- == 0; };
    const auto summary = convert();
    if (summary) break;
    ASSERT_EQ(summary.error().code, ErrorCode::cancelled) << summary.error().message;
    ASSERT_LT(++interrupts, 40u);
  }
  EXPECT_GT(interrupts, 2u);
  EXPECT_TRUE(bytes(options_.output) == whole);
}

TEST_F(EmbeddedVectors, DamagedOnesAreNamed) {
  imatrix_.entries = {{"a", {1, -2}}};
  const std::string path = folder_ + "/damaged.gguf";
  format::GgufWriter writer(path);
  add_vectors(imatrix_, {}, writer);
  ASSERT_TRUE(write_vectors(imatrix_, 0, writer));
  ASSERT_TRUE(writer.finish());
  const auto negative = format::read_imatrix(path);
  ASSERT_FALSE(negative);
  EXPECT_THAT(negative.error().message, HasSubstr("damaged.gguf: value 1 of \"a\" is -2"));

  format::GgufWriter halves(path);
  const uint64_t dims[] = {2};
  halves.add_tensor("imatrix.b", format::TensorType::f16, dims);
  ASSERT_TRUE(halves.write_tensor(std::vector<std::byte>(4)));
  ASSERT_TRUE(halves.finish());
  const auto type = format::read_imatrix(path);
  ASSERT_FALSE(type);
  EXPECT_THAT(type.error().message, HasSubstr("tensor \"imatrix.b\" has type F16"));
}

}  // namespace
}  // namespace ds4::quantize
