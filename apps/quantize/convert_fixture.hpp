// For tests: a small checkpoint, what converting it gives, and the values that it holds.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint_fixture.hpp"
#include "convert.hpp"
#include "format/gguf.hpp"
#include "format/number_formats.hpp"

namespace ds4::quantize {

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

  format::GgufFile open(const std::string& path) {
    auto file = format::GgufFile::open(path);
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
    if (tensor.type != format::TensorType::i32) {
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

}  // namespace ds4::quantize
