// For tests of the disk store: states of a few bytes whose content follows from their tokens, and a folder
// for them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/state_store.hpp"

namespace ds4::store::testing {

inline constexpr size_t block_tokens = 4;
inline constexpr const char* fingerprint_a = "00112233445566778899aabbccddeeff";
inline constexpr const char* fingerprint_b = "ffeeddccbbaa99887766554433221100";

struct Sizes {
  uint64_t block_bytes = 24;
  uint64_t frontier_base_bytes = 40;
  uint64_t frontier(uint64_t position) const { return frontier_base_bytes + position % block_tokens * 8; }
};

/// Bytes that only these tokens have.
inline void fill(std::span<std::byte> out, std::span<const Token> tokens, uint64_t salt) {
  uint64_t state = salt;
  for (const Token token : tokens) state = (state ^ static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& byte : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

class FakeState : public StateSource, public StateSink {
 public:
  explicit FakeState(std::vector<Token> tokens, uint64_t salt = 1)
      : tokens_(std::move(tokens)), salt_(salt) {}

  std::span<const Token> tokens() const override { return tokens_; }
  Result<void> export_block(size_t block, std::span<std::byte> out) const override {
    fill(out, std::span(tokens_).first((block + 1) * block_tokens), salt_);
    return {};
  }
  Result<void> export_frontier(std::span<std::byte> out) const override {
    fill(out, tokens_, salt_ + 1000);
    return {};
  }

  // As a sink: what does not belong to these tokens is counted.
  Result<void> add_block(std::span<const std::byte> bytes) override {
    std::vector<std::byte> expected(bytes.size());
    if ((blocks + 1) * block_tokens > tokens_.size()) return Error{ErrorCode::internal, "too many blocks"};
    fill(expected, std::span(tokens_).first((blocks + 1) * block_tokens), salt_);
    if (!std::equal(bytes.begin(), bytes.end(), expected.begin())) ++wrong;
    ++blocks;
    return {};
  }
  Result<void> add_frontier(std::span<const std::byte> bytes) override {
    std::vector<std::byte> expected(bytes.size());
    fill(expected, tokens_, salt_ + 1000);
    if (!std::equal(bytes.begin(), bytes.end(), expected.begin())) ++wrong;
    if (blocks != tokens_.size() / block_tokens) ++wrong;
    complete = true;
    return {};
  }

  size_t blocks = 0, wrong = 0;
  bool complete = false;

 private:
  std::vector<Token> tokens_;
  uint64_t salt_;
};

/// Tokens first, first + 1, ...
inline std::vector<Token> run(size_t count, Token first = 0) {
  std::vector<Token> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<Token>(i);
  return tokens;
}

inline std::vector<Token> join(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline uint64_t folder_bytes(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code problem;
  for (auto entry = std::filesystem::recursive_directory_iterator(path, problem);
       entry != std::filesystem::recursive_directory_iterator(); entry.increment(problem)) {
    if (problem) break;
    std::error_code gone;
    if (!entry->is_regular_file(gone) || gone) continue;
    const uint64_t size = entry->file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Files with this end below a folder, sorted.
inline std::vector<std::filesystem::path> files_with(const std::string& folder, const std::string& end) {
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().string().ends_with(end)) all.push_back(entry.path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    static int number = 0;
    // In memory where there is such a place: a test writes thousands of files to the disk.
    const std::filesystem::path memory = "/dev/shm";
    folder_ = (access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path()) /
              ("ds4-store-" + std::to_string(getpid()) + "-" + std::to_string(++number));
    std::filesystem::remove_all(folder_);
  }
  ~StoreTest() override { std::filesystem::remove_all(folder_); }

  StateStoreOptions options() {
    StateStoreOptions options;
    options.directory.directory = folder_.string();
    options.directory.budget_bytes = budget_bytes_;
    options.directory.clock = [this] { return time_; };
    options.directory.log = [this](std::string_view line) {
      const std::lock_guard guard(log_mutex_);
      log_.emplace_back(line);
    };
    options.fingerprint = fingerprint_;
    options.block_tokens = block_tokens;
    options.block_bytes = sizes_.block_bytes;
    options.frontier_bytes = [sizes = sizes_](uint64_t position) { return sizes.frontier(position); };
    options.policy = {.min_tokens = 2};
    options.min_growth_tokens = 1;
    return options;
  }
  std::unique_ptr<StateStore> open() { return open(options()); }
  std::unique_ptr<StateStore> open(const StateStoreOptions& options) {
    auto store = StateStore::open(options);
    EXPECT_TRUE(store) << store.error().message;
    return store ? std::move(*store) : nullptr;
  }

  WriteReport write(StateStore& store, const std::vector<Token>& tokens, const WriteInfo& info = {}) {
    auto report = store.write(FakeState(tokens), info);
    EXPECT_TRUE(report) << report.error().message;
    return report ? *report : WriteReport{};
  }

  /// The length of the state that is found and read for a prompt; 0 for none. What is read must be right.
  static uint64_t restore(StateStore& store, const std::vector<Token>& prompt, uint64_t salt = 1) {
    const auto match = store.find({.tokens = prompt});
    if (!match) return 0;
    EXPECT_TRUE(std::equal(match->tokens.begin(), match->tokens.end(), prompt.begin()));
    FakeState sink({match->tokens.begin(), match->tokens.begin() + static_cast<ptrdiff_t>(match->position)},
                   salt);
    if (!store.read(*match, sink)) return 0;
    EXPECT_TRUE(sink.complete);
    EXPECT_EQ(sink.wrong, 0u);
    return match->position;
  }

  std::filesystem::path folder_;
  std::string fingerprint_ = fingerprint_a;
  uint64_t budget_bytes_ = uint64_t{64} << 20;
  Sizes sizes_;
  int64_t time_ = 1000000;
  std::mutex log_mutex_;
  std::vector<std::string> log_;
};

}  // namespace ds4::store::testing
