#include "disk_probe.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <vector>

#include "store/store_directory.hpp"

namespace ds4::bench {
namespace {

using testing::HasSubstr;

class DiskProbeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "disk_probe.XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = BackendChoice::cpu;
    auto engine = Engine::open(options);
    ASSERT_TRUE(engine) << engine.error().message;
    engine_.emplace(std::move(*engine));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Session session_of(size_t count) const {
    std::vector<Token> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 300);
    auto session = engine_->create_session(1024);
    EXPECT_TRUE(session->sync(tokens));
    return std::move(*session);
  }

  size_t states() const {
    auto directory = store::StoreDirectory::open({.directory = folder_, .budget_bytes = UINT64_MAX});
    return (*directory)->list()->size();
  }

  std::string folder_;
  std::optional<Engine> engine_;
};

TEST_F(DiskProbeTest, EachRunWritesAllAndLeavesNothing) {
  const Session shorter = session_of(130), longer = session_of(300);
  std::optional<uint64_t> first_written;
  for (int run = 0; run < 2; ++run) {
    auto probe = DiskProbe::open(folder_, *engine_);
    ASSERT_TRUE(probe) << probe.error().message;
    const auto first = probe->measure(shorter);
    ASSERT_TRUE(first) << first.error().message;
    const auto second = probe->measure(longer);
    ASSERT_TRUE(second) << second.error().message;
    EXPECT_EQ(states(), 2u);

    const StateLayout& layout = engine_->state_layout();
    EXPECT_GE(first->read_bytes, layout.block_bytes() + layout.frontier_bytes(130));
    EXPECT_GE(second->read_bytes, 2 * layout.block_bytes() + layout.frontier_bytes(300));
    EXPECT_GE(first->written_bytes, first->read_bytes);
    // The first block is there.
    EXPECT_GE(second->written_bytes, layout.block_bytes() + layout.frontier_bytes(300));
    EXPECT_LT(second->written_bytes, second->read_bytes);
    EXPECT_GT(second->write_bytes_per_second(), 0);
    EXPECT_GT(second->read_bytes_per_second(), 0);
    EXPECT_EQ(first_written.value_or(first->written_bytes), first->written_bytes);
    first_written = first->written_bytes;
  }
  EXPECT_EQ(states(), 0u);
}

TEST_F(DiskProbeTest, AFolderThatCannotBeWrittenIsNamed) {
  const Session session = session_of(10);
  auto probe = DiskProbe::open(folder_, *engine_);
  ASSERT_TRUE(probe);
  std::filesystem::remove_all(folder_ + "/tmp");
  std::ofstream(folder_ + "/tmp") << "no folder";
  const auto times = probe->measure(session);
  ASSERT_FALSE(times);
  EXPECT_THAT(times.error().message, HasSubstr("the disk cache in " + folder_ + " failed: "));
}

TEST_F(DiskProbeTest, StatesDifferByTokensAndLogits) {
  const Session session = session_of(20);
  EXPECT_TRUE(*same_state(session, session_of(20)));
  EXPECT_FALSE(*same_state(session, session_of(21)));

  std::vector<Token> tokens(session.tokens().begin(), session.tokens().end());
  EngineOptions options;
  options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
  options.backend = BackendChoice::cpu;
  options.exact_activations = true;
  const auto exact = Engine::open(options);
  ASSERT_TRUE(exact);
  auto other = exact->create_session(1024);
  ASSERT_TRUE(other->sync(tokens));
  EXPECT_FALSE(*same_state(session, *other));  // the same tokens, computed otherwise
}

TEST(DiskProbeFolder, WhatIsNoFolderIsNamed) {
  const auto checked = DiskProbe::check_folder(DS4_SOURCE_DIR "/README.md");
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message, HasSubstr("the disk cache in " DS4_SOURCE_DIR "/README.md failed: "));
}

}  // namespace
}  // namespace ds4::bench
