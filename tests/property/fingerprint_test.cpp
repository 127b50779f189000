// What an engine's fingerprint tells apart, and what it does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/engine.hpp"
#include "support/loaded_model.hpp"

namespace ds4 {
namespace {

using testing::must;

const std::string nano = DS4_SOURCE_DIR "/models/nano/nano.gguf";

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FingerprintTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& path : written_) std::filesystem::remove(path);
  }

  static EngineOptions options(const std::string& path = nano) {
    EngineOptions result;
    result.model_path = path;
    result.backend = BackendChoice::cpu;
    result.threads = 1;
    return result;
  }
  static std::string of(const EngineOptions& options) {
    return must(must(Engine::open(options)).fingerprint());
  }
  std::string write(const std::string& name, std::span<const char> bytes) {
    const std::string path = ::testing::TempDir() + name;
    written_.push_back(path);
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

 private:
  std::vector<std::string> written_;
};

TEST_F(FingerprintTest, IsThatOfTheModelNotOfHowItRuns) {
  const std::string expected = of(options());
  EXPECT_EQ(expected.size(), 32u);
  EXPECT_EQ(expected.find_first_not_of("0123456789abcdef"), std::string::npos);
  EngineOptions other = options();
  other.threads = 2;
  other.prefill_chunk = 64;
  other.warm_weights = true;
  EXPECT_EQ(of(other), expected);
  EXPECT_EQ(of(options(write("fingerprint_copy.gguf", read(nano)))), expected);
}

TEST_F(FingerprintTest, ChangesWithEverythingThatIsComputed) {
  std::set<std::string> seen{of(options())};
  const auto is_new = [&](const EngineOptions& changed) { return seen.insert(of(changed)).second; };
  EngineOptions changed = options();
  changed.exact_activations = true;
  EXPECT_TRUE(is_new(changed));
  changed = options();
  changed.mtp_path = DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf";
  EXPECT_TRUE(is_new(changed));
  std::vector<char> drafter = read(changed.mtp_path);
  drafter.back() = static_cast<char>(drafter.back() ^ 1);
  changed.mtp_path = write("fingerprint_mtp.gguf", drafter);
  EXPECT_TRUE(is_new(changed));

  const Engine engine = must(Engine::open(options()));
  std::vector<char> directions(size_t{engine.info().layers} * engine.info().width * sizeof(float));
  changed = options();
  changed.steering_path = write("fingerprint.f32", directions);
  EXPECT_TRUE(is_new(changed));
  directions[2] = static_cast<char>(0x80);
  changed.steering_path = write("fingerprint.f32", directions);
  EXPECT_TRUE(is_new(changed));
}

// Metadata, and the first, a middle and the last byte of a tensor.
TEST_F(FingerprintTest, ChangesWithTheModelFile) {
  std::vector<char> bytes = read(nano);
  std::set<std::string> seen{of(options())};
  const auto is_new = [&](size_t place, char value) {
    const char before = bytes[place];
    bytes[place] = value;
    const std::string path = write("fingerprint.gguf", bytes);
    bytes[place] = before;
    return seen.insert(of(options(path))).second;
  };
  const format::GgufFile file = must(format::GgufFile::open(nano));
  const auto text = [&](std::string_view what) {
    return static_cast<size_t>(std::search(bytes.begin(), bytes.end(), what.begin(), what.end()) -
                               bytes.begin());
  };
  EXPECT_TRUE(is_new(text(must(file.get_string("general.name"))), 'X'));
  const format::GgufTensor* tensor = file.find_tensor("output.weight");
  ASSERT_NE(tensor, nullptr);
  ASSERT_GT(tensor->size_bytes, 3 * 4096u);
  const size_t begin = text({reinterpret_cast<const char*>(tensor->data), 4096});
  for (const size_t place : {begin + 2, begin + tensor->size_bytes / 2 + 5, begin + tensor->size_bytes - 1}) {
    EXPECT_TRUE(is_new(place, static_cast<char>(bytes[place] ^ 4))) << place;
  }
}

}  // namespace
}  // namespace ds4
