#include "store/background_writer.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#include "store/store_fixture.hpp"

namespace ds4::store {
namespace {

using namespace testing;
using namespace std::chrono_literals;

/// A state whose export waits until it is let go.
class SlowState : public FakeState {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false, reached = false;
    void let_go() {
      const std::lock_guard lock(mutex);
      open = true;
      changed.notify_all();
    }
    void wait_until_reached() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return reached; });
    }
  };
  SlowState(std::vector<Token> tokens, Gate& gate) : FakeState(std::move(tokens)), gate_(gate) {}
  Result<void> export_frontier(std::span<std::byte> out) const override {
    std::unique_lock lock(gate_.mutex);
    gate_.reached = true;
    gate_.changed.notify_all();
    gate_.changed.wait(lock, [&] { return gate_.open; });
    return FakeState::export_frontier(out);
  }

 private:
  Gate& gate_;
};

class BackgroundWriterTest : public StoreTest {
 protected:
  static StateJob job(const std::string& lineage, std::vector<Token> tokens, WriteInfo info = {}) {
    return {lineage, std::make_shared<FakeState>(std::move(tokens)), std::move(info)};
  }
};

TEST_F(BackgroundWriterTest, WritesWhatIsPosted) {
  auto store = open();
  {
    BackgroundWriter writer(*store);
    EXPECT_TRUE(writer.post(job("a", run(10))));
    EXPECT_TRUE(writer.post(job("b", run(12, 500))));
    const std::string reply = "reply";
    const auto bytes = std::as_bytes(std::span(reply));
    EXPECT_TRUE(writer.post(ReplyJob{{"key"}, {bytes.begin(), bytes.end()}}));
    EXPECT_TRUE(writer.drain(10s));
    EXPECT_EQ(writer.counts().waiting, 0u);
  }
  EXPECT_EQ(restore(*store, run(10)), 10u);
  EXPECT_EQ(restore(*store, run(12, 500)), 12u);
  EXPECT_TRUE(store->get_reply("key"));
}

TEST_F(BackgroundWriterTest, OfAGrowingTextOnlyTheNewestWaits) {
  auto store = open();
  SlowState::Gate gate;
  BackgroundWriter writer(*store);
  writer.post({"z", std::make_shared<SlowState>(run(8, 900), gate), {}});
  gate.wait_until_reached();
  writer.post(job("a", run(10)));
  writer.post(job("b", run(10, 500)));
  writer.post(job("a", run(14), {.anchor = true}));
  writer.post(job("a", run(20)));
  writer.post(job("a", run(30)));
  EXPECT_EQ(writer.counts().replaced, 2u);
  EXPECT_EQ(writer.counts().waiting, 4u);
  EXPECT_FALSE(writer.drain(20ms));
  gate.let_go();
  EXPECT_TRUE(writer.drain(10s));
  EXPECT_EQ(restore(*store, run(29)), 14u) << "anchors are not replaced";
  EXPECT_EQ(restore(*store, run(30)), 30u);
  EXPECT_EQ(restore(*store, run(13)), 0u);
  EXPECT_EQ(store->stats().entries, 4u);
}

TEST_F(BackgroundWriterTest, TheQueueIsBounded) {
  auto store = open();
  SlowState::Gate gate;
  BackgroundWriter writer(*store, {.most_states = 2, .most_replies = 1});
  writer.post({"z", std::make_shared<SlowState>(run(8, 900), gate), {}});
  gate.wait_until_reached();
  EXPECT_TRUE(writer.post(job("a", run(10), {.forced = true})));
  EXPECT_TRUE(writer.post(job("b", run(10, 100))));
  EXPECT_TRUE(writer.post(job("c", run(10, 200), {.forced = true}))) << "in place of b";
  EXPECT_FALSE(writer.post(job("d", run(10, 300))));
  EXPECT_FALSE(writer.post(job("e", run(10, 400), {.forced = true})));
  EXPECT_TRUE(writer.post(ReplyJob{{"one"}, {}}));
  EXPECT_FALSE(writer.post(ReplyJob{{"two"}, {}}));
  EXPECT_EQ(writer.counts().dropped, 4u);
  gate.let_go();
  EXPECT_TRUE(writer.drain(10s));
  EXPECT_EQ(restore(*store, run(10)), 10u);
  EXPECT_EQ(restore(*store, run(10, 200)), 10u);
  EXPECT_EQ(store->stats().entries, 3u);
}

TEST_F(BackgroundWriterTest, TellsHowItWent) {
  auto store = open();
  std::vector<std::string> told;
  {
    BackgroundWriter writer(*store,
                            {.on_written = [&](const StateJob& done, const Result<WriteReport>& result) {
                              told.push_back(done.lineage + (result ? " ok" : " failed"));
                            }});
    writer.post(job("a", run(10)));
    writer.post(job("b", run(10, 500), {.borders = {{99, 0, {}}}}));
    EXPECT_TRUE(writer.drain(10s));
  }
  EXPECT_EQ(told, (std::vector<std::string>{"a ok", "b failed"}));
}

TEST_F(BackgroundWriterTest, WaitingStatesCanBeGivenUpForTheirMemory) {
  auto store = open();
  SlowState::Gate gate;
  BackgroundWriter writer(*store);
  writer.post({"z", std::make_shared<SlowState>(run(8, 900), gate), {}});
  gate.wait_until_reached();
  EXPECT_FALSE(writer.give_up_oldest()) << "the one at work does not wait";
  const auto forced = std::make_shared<FakeState>(run(10));
  const auto first = std::make_shared<FakeState>(run(10, 100)),
             second = std::make_shared<FakeState>(run(10, 200));
  writer.post({"a", forced, {.forced = true}});
  writer.post({"b", first, {}});
  writer.post({"c", second, {}});
  EXPECT_TRUE(writer.give_up_oldest());
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(second.use_count(), 2);
  EXPECT_TRUE(writer.give_up_oldest());
  EXPECT_TRUE(writer.give_up_oldest());
  EXPECT_EQ(forced.use_count(), 1);
  EXPECT_FALSE(writer.give_up_oldest());
  EXPECT_EQ(writer.counts().dropped, 3u);
  gate.let_go();
  EXPECT_TRUE(writer.drain(10s));
}

TEST_F(BackgroundWriterTest, GoesOnWithoutMemory) {
  auto store = open();
  BackgroundWriter writer(*store, {.on_written = [](const StateJob& job, const Result<WriteReport>&) {
    if (job.lineage == "a") throw std::bad_alloc();
  }});
  writer.post(job("a", run(10)));
  writer.post(job("b", run(10, 500)));
  EXPECT_TRUE(writer.drain(10s));
  EXPECT_EQ(writer.counts().dropped, 1u);
  EXPECT_EQ(restore(*store, run(10, 500)), 10u);
}

// What is written meanwhile continues it, and would find nothing to build on.
TEST_F(BackgroundWriterTest, WhatIsDamagedGoesBetweenWrites) {
  auto store = open();
  write(*store, run(8));
  const auto file = files_with(folder_.string(), ".seg").front();
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(file, bytes);
  SlowState::Gate gate;
  BackgroundWriter writer(*store);
  writer.post({"z", std::make_shared<SlowState>(run(30), gate), {}});
  gate.wait_until_reached();
  std::thread release([&] {
    std::this_thread::sleep_for(50ms);
    gate.let_go();
  });
  EXPECT_EQ(store->verify(true)->damaged.size(), 1u);
  release.join();
  EXPECT_TRUE(writer.drain(10s));
  const StoreStats stats = store->stats();
  EXPECT_EQ(stats.writes, 2u);
  EXPECT_EQ(stats.write_failures, 0u);
  EXPECT_EQ(stats.rebuilds, 0u);
  EXPECT_EQ(stats.entries, 0u) << "it goes with what builds on it";
}

TEST_F(BackgroundWriterTest, EndsWithWorkLeft) {
  auto store = open();
  {
    BackgroundWriter writer(*store);
    for (Token i = 0; i < 8; ++i) writer.post(job(std::to_string(i), run(400, 1000 * i)));
  }
  EXPECT_TRUE(store->verify(false)->damaged.empty());
}

}  // namespace
}  // namespace ds4::store
