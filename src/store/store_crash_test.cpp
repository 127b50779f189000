// Writers that are killed, writers at the same time, and a budget that holds all the while.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "store/store_fixture.hpp"

namespace ds4::store {
namespace {

using namespace testing;
namespace fs = std::filesystem;

class StoreCrash : public StoreTest {
 protected:
  /// Runs `work` in a process of its own.
  template <class Work>
  static pid_t start(const Work& work) {
    const pid_t child = fork();
    if (child == 0) {
      work();
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    return child;
  }
  static int finish(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }
};

TEST_F(StoreCrash, AKilledWriterLeavesNothingHalf) {
  // Large enough that a write takes a while.
  sizes_ = {.block_bytes = 20000, .frontier_base_bytes = 100000};
  std::mt19937 random(11);
  size_t states_seen = 0, killed_while_writing = 0;
  // Until some were hit in the middle of a file, which slow machines make rare.
  for (int round = 0; round < 50 || (killed_while_writing == 0 && round < 500); ++round) {
    const Token seed = 10000 * (round + 1);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = start([&] {
      auto store = open();
      for (Token i = 0; i < 1000; ++i) {
        (void)store->write(FakeState(run(40 + static_cast<size_t>(i), seed)), {});
        if (i == 0) (void)!::write(ready[1], "", 1);
      }
    });
    close(ready[1]);
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);  // however slow its start was
    close(ready[0]);
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 12000));
    kill(child, SIGKILL);
    ASSERT_TRUE(WIFSIGNALED(finish(child)));
    killed_while_writing += fs::exists(folder_ / "tmp") && !fs::is_empty(folder_ / "tmp") ? 1 : 0;

    auto store = open();
    ASSERT_TRUE(store);
    EXPECT_TRUE(fs::is_empty(folder_ / "tmp"));
    const auto report = store->verify(false);
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->damaged.empty())
        << report->damaged.front().path << " " << report->damaged.front().reason;
    const auto entries = store->list();
    ASSERT_TRUE(entries);
    states_seen += entries->size();
    const std::vector<Token> prompt = run(2000, seed);
    const auto match = store->find({.tokens = prompt});
    if (match) {
      EXPECT_EQ(restore(*store, prompt), match->position);
    }
    // Files and index are the same set.
    const StoreStats stats = store->stats();
    EXPECT_EQ(files_with(folder_.string(), ".fr").size(), stats.entries);
    EXPECT_EQ(files_with(folder_.string(), ".seg").size(), stats.segments);
    if (round % 10 != 9) continue;
    ASSERT_TRUE(store->purge({}));
  }
  EXPECT_GT(states_seen, 50u);
  EXPECT_GT(killed_while_writing, 0u) << "the test does not hit writers at work";
  EXPECT_TRUE(log_.empty()) << log_.front();
}

TEST_F(StoreCrash, TwoProcessesShareAFolder) {
  sizes_ = {.block_bytes = 3000, .frontier_base_bytes = 5000};
  budget_bytes_ = uint64_t{3} << 20;
  const auto worker = [&](unsigned seed) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    std::mt19937 random(seed);
    uint64_t hits = 0;
    auto store = open();
    for (int i = 0; std::chrono::steady_clock::now() < end; ++i) {
      // Both work on the same texts, which branch.
      const std::vector<Token> text =
          join(run(20 + random() % 60, static_cast<Token>(1000 * (random() % 6))), run(random() % 30, 50000));
      hits += restore(*store, text) > 0 ? 1 : 0;
      (void)store->write(FakeState(text), {.anchor = random() % 8 == 0});
      if (i % 50 == 49) store = open();
      if (i % 97 == 96) (void)store->purge({.unused_for_s = 1000000});
    }
    EXPECT_GT(hits, 50u);
    // Nothing was taken for damaged that was only evicted by the other.
    for (const std::string& line : log_) ADD_FAILURE() << line;
    if (::testing::Test::HasFailure()) std::fprintf(stderr, "hits %d\n", static_cast<int>(hits));
  };
  const pid_t first = start([&] { worker(1); });
  const pid_t second = start([&] { worker(2); });
  uint64_t most = 0;
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    most = std::max(most, folder_bytes(folder_.string()));
  }
  EXPECT_EQ(finish(first), 0);
  EXPECT_EQ(finish(second), 0);
  EXPECT_LE(most, budget_bytes_);
  EXPECT_GT(most, budget_bytes_ / 2);
  const auto report = open()->verify(false);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->damaged.empty());
}

TEST_F(StoreCrash, ThreadsShareAStore) {
  sizes_ = {.block_bytes = 3000, .frontier_base_bytes = 5000};
  budget_bytes_ = uint64_t{3} << 20;
  auto store = open();
  std::vector<std::thread> threads;
  std::atomic<uint64_t> hits = 0;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 150; ++i) {
        const std::vector<Token> text = run(20 + random() % 60, static_cast<Token>(1000 * (random() % 4)));
        hits += restore(*store, text) > 0 ? 1 : 0;
        if (seed != 3) (void)store->write(FakeState(text), {});
        (void)store->stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 50u);
  EXPECT_TRUE(log_.empty()) << log_.front();
}

TEST_F(StoreCrash, TheBudgetHoldsAndTailsGoFirst) {
  sizes_ = {.block_bytes = 20000, .frontier_base_bytes = 30000};
  budget_bytes_ = uint64_t{4} << 20;
  auto store = open();
  const std::vector<Token> start = run(24);
  write(*store, start, {.anchor = true});
  for (Token i = 0; i < 200; ++i) {
    time_ += 60;
    write(*store, join(start, run(12, 1000 + 100 * i)));
    ASSERT_LE(folder_bytes(folder_.string()), budget_bytes_) << i;
    ASSERT_EQ(restore(*store, join(start, run(12, 1000 + 100 * i))), 36u) << "what was just stored is there";
  }
  EXPECT_EQ(restore(*store, start), 24u);
  EXPECT_GT(store->stats().evictions, 100u);
  EXPECT_GT(store->stats().entries, 20u);
  // What does not fit at all is refused without anything being given up for it.
  const uint64_t entries = store->stats().entries;
  EXPECT_EQ(store->write(FakeState(run(1000, 700000)), {}).error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(store->stats().entries, entries);
  // A smaller budget is kept to at once.
  budget_bytes_ = uint64_t{2} << 20;
  store.reset();
  store = open();
  EXPECT_LE(folder_bytes(folder_.string()), budget_bytes_);
  EXPECT_EQ(restore(*store, start), 24u);
}

TEST_F(StoreCrash, PinnedStatesStay) {
  sizes_ = {.block_bytes = 20000, .frontier_base_bytes = 30000};
  budget_bytes_ = uint64_t{2} << 20;
  auto store = open();
  const WriteReport pinned = write(*store, run(12, 1000));
  ASSERT_TRUE(store->set_pinned(pinned.key, true));
  for (Token i = 0; i < 60; ++i) {
    time_ += 1000;
    write(*store, run(12, 10000 + 100 * i));
  }
  EXPECT_EQ(restore(*store, run(12, 1000)), 12u);
  EXPECT_GT(store->stats().evictions, 30u);
}

}  // namespace
}  // namespace ds4::store
