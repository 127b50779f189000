// States on disk: whatever was written, read, branched, rewound, killed or restarted in between, a
// conversation goes on as in a process that was just started. Built for the CPU, where that means the same
// bits, and for a GPU, where the state is the same bits and what follows is judged by its tokens.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ds4/engine.hpp"
#include "store/engine_state.hpp"
#include "support/loaded_model.hpp"
#include "support/session_checks.hpp"
#include "support/tested_device.hpp"

namespace ds4 {
namespace {

using store::StateStore;
using testing::logits_of;
using testing::must;
using testing::random_tokens;

constexpr uint64_t context = 40000;
constexpr size_t follow_up = 12;

class DiskStateTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    testing::DeviceTest::SetUp();
    folder_ = ::testing::TempDir() + "ds4_disk_state_test_" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static Engine open(uint32_t chunk = 4096) {
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = testing::tested_backend;
    options.threads = 2;
    options.prefill_chunk = chunk;
    return must(Engine::open(options));
  }

  std::unique_ptr<StateStore> open_store(const Engine& engine) const {
    auto options = store::store_options(engine.state_layout(), must(store::state_fingerprint(engine, "")));
    options.directory.directory = folder_;
    options.policy.min_tokens = 1;
    return must(StateStore::open(std::move(options)));
  }

  static void write(StateStore& disk, const Engine& engine, const Session& session) {
    const store::SnapshotSource source(must(session.snapshot()), engine.tokenizer());
    store::WriteInfo info;
    info.forced = true;
    // Of a text that grows only some states stay, unless they are pinned.
    must(disk.set_pinned(must(disk.write(source, info)).key, true));
  }

  // Nothing if nothing is found.
  static std::optional<Session> read(StateStore& disk, const Engine& engine, std::span<const Token> tokens) {
    const auto match = disk.find({.tokens = tokens});
    if (!match) return std::nullopt;
    store::SessionSink sink(
        must(engine.import_state(std::span(match->tokens).first(match->position), context)));
    must(disk.read(*match, sink));
    return sink.take();
  }

  // The tokens and logits of both after the same further text, and how they would go on.
  static void expect_same_future(Session& ours, Session& theirs, size_t seed) {
    ASSERT_EQ(ours.position(), theirs.position());
    for (const Token token : random_tokens(follow_up, seed)) {
      must(ours.eval(token));
      must(theirs.eval(token));
    }
    ASSERT_EQ(logits_of(ours), logits_of(theirs)) << ours.position();
    ASSERT_EQ(must(ours.argmax()), must(theirs.argmax()));
  }

  std::string folder_;
};

// The lengths at which something begins or ends: compressor windows, the raw window, blocks, segments,
// chunks.
constexpr size_t lengths[] = {3,   4,   5,   31,   32,   33,   127,  128,  129,  130,  255,  256, 257,
                              511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097};

TEST_F(DiskStateTest, EveryLengthComesBackInAFreshProcess) {
  const auto tokens = random_tokens(4097, 5);
  const Engine writer = open();
  {
    const auto disk = open_store(writer);
    Session session = must(writer.create_session(context));
    for (const size_t length : lengths) {
      must(session.sync(std::span(tokens).first(length)));
      write(*disk, writer, session);
    }
  }
  const Engine reader = open(256);  // other chunks make no difference
  const auto disk = open_store(reader);
  Session live = must(writer.create_session(context));
  for (const size_t length : lengths) {
    must(live.sync(std::span(tokens).first(length)));
    auto restored = read(*disk, reader, std::span(tokens).first(length));
    ASSERT_TRUE(restored.has_value()) << length;
    ASSERT_EQ(restored->position(), length);
    EXPECT_EQ(logits_of(*restored), logits_of(live)) << length;
    Session branch = must(live.fork(length));
    expect_same_future(*restored, branch, length);
  }
  if (testing::on_gpu) return;
  // And as if there had never been a disk, or another length before.
  for (const size_t length : {129ul, 1024ul, 4097ul}) {
    auto restored = read(*disk, reader, std::span(tokens).first(length));
    Session cold = must(reader.create_session(context));
    must(cold.sync(std::span(tokens).first(length)));
    EXPECT_EQ(logits_of(*restored), logits_of(cold));
    expect_same_future(*restored, cold, 3);
  }
}

TEST_F(DiskStateTest, BeyondLongLengths) {
  std::vector<size_t> long_lengths{8191, 8192, 8193};
  if (testing::on_gpu) long_lengths.insert(long_lengths.end(), {32767, 32768, 32769});
  const auto tokens = random_tokens(long_lengths.back(), 9);
  const Engine engine = open();
  const auto disk = open_store(engine);
  Session session = must(engine.create_session(context));
  for (const size_t length : long_lengths) {
    must(session.sync(std::span(tokens).first(length)));
    write(*disk, engine, session);
    auto restored = read(*disk, engine, std::span(tokens).first(length));
    ASSERT_TRUE(restored.has_value());
    Session live = must(session.fork(length));
    expect_same_future(*restored, live, length);
  }
}

TEST_F(DiskStateTest, BranchesAndRewindsAreOtherConversations) {
  const Engine engine = open();
  const auto disk = open_store(engine);
  const auto trunk = random_tokens(700, 1);
  Session session = must(engine.create_session(context));
  must(session.sync(trunk));
  write(*disk, engine, session);
  // Two ways on from the middle.
  std::vector<std::vector<Token>> branches;
  for (const uint64_t seed : {2, 3}) {
    std::vector<Token> branch(trunk.begin(), trunk.begin() + 500);
    const auto rest = random_tokens(150, seed);
    branch.insert(branch.end(), rest.begin(), rest.end());
    must(session.sync(branch));
    write(*disk, engine, session);
    branches.push_back(std::move(branch));
  }
  branches.push_back(trunk);
  for (const auto& tokens : branches) {
    auto restored = read(*disk, engine, tokens);
    ASSERT_TRUE(restored.has_value());
    ASSERT_EQ(restored->position(), tokens.size());
    Session other = must(engine.create_session(context));
    must(other.sync(tokens));
    if (!testing::on_gpu) expect_same_future(*restored, other, 7);
  }
  // What was only ever a beginning is not a state; a longer text goes on from the state that it begins with.
  EXPECT_FALSE(read(*disk, engine, std::span(trunk).first(600)).has_value());
  std::vector<Token> longer = branches[0];
  longer.push_back(9);
  EXPECT_EQ(read(*disk, engine, longer)->position(), branches[0].size());
}

// A child process writes states until it is killed; what is found afterwards is whole.
TEST_F(DiskStateTest, KilledWhileItWrites) {
  if (testing::on_gpu) GTEST_SKIP() << "a process that was forked cannot use a GPU";
  const auto tokens = random_tokens(2000, 4);
  const Engine engine = open();
  Session cold = must(engine.create_session(context));
  for (int round = 0; round < 50; ++round) {
    // Some rounds end at any time, the others only behind the first state, however slow the machine.
    const bool after_first = round >= 15;
    std::filesystem::remove_all(folder_);
    int wrote_first[2];
    ASSERT_EQ(::pipe(wrote_first), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const Engine own = open();
      const auto disk = open_store(own);
      Session session = must(own.create_session(context));
      for (size_t length = 100; length <= tokens.size(); length += 100) {
        must(session.sync(std::span(tokens).first(length)));
        write(*disk, own, session);
        if (length == 100 && ::write(wrote_first[1], "1", 1) != 1) ::_exit(1);
      }
      ::_exit(0);
    }
    ::close(wrote_first[1]);
    char byte = 0;
    if (after_first) {
      EXPECT_EQ(::read(wrote_first[0], &byte, 1), 1) << round;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(after_first ? (round - 15) * 9 : 15 + round * 15));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(wrote_first[0]);
    const auto disk = open_store(engine);
    EXPECT_TRUE(must(disk->verify(false)).damaged.empty()) << round;
    auto restored = read(*disk, engine, tokens);
    EXPECT_TRUE(restored || !after_first) << round;
    if (!restored) continue;
    must(cold.sync(std::span(tokens).first(restored->position())));
    ASSERT_EQ(logits_of(*restored), logits_of(cold)) << round;
  }
}

}  // namespace
}  // namespace ds4
