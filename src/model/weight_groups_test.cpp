#include "model/weight_groups.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "support/tiny_model.hpp"

namespace ds4::model {
namespace {

TEST(WeightGroups, EveryTensorCountsOnceUnderItsKind) {
  const std::string path = ::testing::TempDir() + "weight_groups.gguf";
  testing::TinyModelOptions options;
  options.shape.vocabulary = 264;
  ASSERT_TRUE(write_tiny_model(path, options));
  auto file = format::GgufFile::open(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(file);
  const auto shape = read_shape(*file, nullptr);
  ASSERT_TRUE(shape);
  const auto weights = bind_weights(*file, *shape);
  ASSERT_TRUE(weights);

  std::map<std::string, uint64_t> bytes;
  for (const auto& part :
       group_weights(*shape, *weights, [](const Tensor& t, TensorRole) { return t.size_bytes; })) {
    bytes[part.name] = part.bytes;
  }
  const uint64_t d = shape->width, expert = shape->expert_width, f32 = 4;
  EXPECT_EQ(bytes["token embedding"], d * shape->vocabulary * f32);
  EXPECT_EQ(bytes["output"], d * shape->vocabulary * f32);
  EXPECT_EQ(bytes["routed experts"], shape->layers * shape->experts * 3 * d * expert * f32);
  EXPECT_EQ(bytes["shared experts"], shape->layers * 3 * d * expert * f32);
  uint64_t sum = 0, all = 0;
  for (const auto& [name, part] : bytes) sum += part;
  for (const Tensor& tensor : file->tensors()) all += tensor.size_bytes;
  EXPECT_EQ(sum, all);
}

}  // namespace
}  // namespace ds4::model
