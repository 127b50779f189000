#include "base/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

namespace {
std::atomic<uint64_t> allocations{0};
}

// Counts every allocation of this test program, so that the pool can be shown not to make any.
// Not inlined: GCC would see malloc paired with delete and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* result = std::malloc(size)) return result;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept {
  std::free(pointer);
}
[[gnu::noinline]] void operator delete(void* pointer, size_t) noexcept {
  std::free(pointer);
}

namespace ds4 {
namespace {

TEST(ThreadPool, EveryIndexRunsExactlyOnce) {
  for (const unsigned threads : {1U, 2U, 3U, 8U}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    for (const size_t count : {0U, 1U, 2U, 7U, 64U, 1000U}) {
      for (const size_t grain : {0U, 1U, 3U, 64U, 5000U}) {
        std::vector<std::atomic<int>> runs(count);
        pool.parallel_for(count, grain, [&](size_t begin, size_t end, unsigned worker) {
          EXPECT_LT(begin, end);
          EXPECT_LE(end - begin, std::max<size_t>(grain, 1));
          EXPECT_LT(worker, threads);
          for (size_t i = begin; i < end; ++i) runs[i].fetch_add(1);
        });
        for (const auto& run : runs) ASSERT_EQ(run.load(), 1) << threads << " " << count << " " << grain;
      }
    }
  }
}

TEST(ThreadPool, GrainNearTheLargestSizeDoesNotOverflow) {
  ThreadPool pool(2);
  size_t covered = 0;
  pool.parallel_for(10, SIZE_MAX, [&](size_t begin, size_t end, unsigned) { covered += end - begin; });
  EXPECT_EQ(covered, 10U);
}

TEST(ThreadPool, WorkersShareTheLoop) {
  ThreadPool pool(4);
  std::atomic<int> inside{0};
  // Each body waits until all four have arrived: only four threads at once can finish this.
  pool.parallel_for(4, 1, [&](size_t, size_t, unsigned) {
    inside.fetch_add(1);
    while (inside.load() < 4) std::this_thread::yield();
  });
  EXPECT_EQ(inside.load(), 4);
}

TEST(ThreadPool, AWorkerNumberIsNeverInUseTwice) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> busy(3);
  std::atomic<int> clashes{0};
  for (int loop = 0; loop < 200; ++loop) {
    pool.parallel_for(30, 1, [&](size_t, size_t, unsigned worker) {
      if (busy[worker].fetch_add(1) != 0) clashes.fetch_add(1);
      busy[worker].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, WritesOfTheBodiesAreVisibleAfterwards) {
  ThreadPool pool(4);
  std::vector<int> values(512);  // plain ints: the thread sanitizer checks the ordering
  for (int loop = 1; loop <= 500; ++loop) {
    pool.parallel_for(values.size(), 16, [&](size_t begin, size_t end, unsigned) {
      for (size_t i = begin; i < end; ++i) values[i] += static_cast<int>(i) * loop % 7;
    });
  }
  int64_t expected = 0;
  for (int loop = 1; loop <= 500; ++loop) {
    for (int i = 0; i < 512; ++i) expected += i * loop % 7;
  }
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), expected);
}

TEST(ThreadPool, CallsFromSeveralThreadsTakeTurns) {
  ThreadPool pool(3);
  std::atomic<int> loops_inside{0};
  std::atomic<int> overlaps{0};
  std::atomic<size_t> total{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int loop = 0; loop < 100; ++loop) {
        pool.parallel_for(20, 2, [&, caller](size_t begin, size_t end, unsigned) {
          int expected = 0;
          if (!loops_inside.compare_exchange_strong(expected, caller + 1) && expected != caller + 1)
            overlaps++;
          total.fetch_add(end - begin);
          std::this_thread::yield();
          loops_inside.store(0);
        });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4U * 100 * 20);
  EXPECT_EQ(overlaps.load(), 0);
}

TEST(ThreadPool, WakesWorkersThatSleep) {
  ThreadPool pool(2);
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond the spin time
    std::atomic<int> inside{0};
    pool.parallel_for(2, 1, [&](size_t, size_t, unsigned) {
      inside.fetch_add(1);
      while (inside.load() < 2) std::this_thread::yield();
    });
    ASSERT_EQ(inside.load(), 2);
  }
}

TEST(ThreadPool, CallerSleepsForALongBody) {
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  std::atomic<int> finished{0};
  pool.parallel_for(2, 1, [&](size_t, size_t, unsigned worker) {
    inside.fetch_add(1);
    while (inside.load() < 2) std::this_thread::yield();
    if (worker != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    finished.fetch_add(1);
  });
  EXPECT_EQ(finished.load(), 2);
}

TEST(ThreadPool, RunningLoopsAllocatesNothing) {
  ThreadPool pool(4);
  std::atomic<size_t> sum{0};
  size_t a = 1, b = 2, c = 3, d = 4;
  const uint64_t before = allocations.load();
  for (int loop = 0; loop < 1000; ++loop) {
    pool.parallel_for(100, 7, [&sum, a, b, c, d](size_t begin, size_t end, unsigned) {
      sum.fetch_add((end - begin) * (a + b + c + d));
    });
  }
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(sum.load(), 1000U * 100 * 10);
}

TEST(ThreadPool, DefaultSizeIsTheNumberOfUsableProcessors) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(ThreadPool().size(), static_cast<unsigned>(CPU_COUNT(&set)));
}

TEST(ThreadPool, PinsEachWorkerToOneProcessor) {
  cpu_set_t own;
  ASSERT_EQ(sched_getaffinity(0, sizeof(own), &own), 0);
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  std::atomic<int> worker_processors{0};
  pool.parallel_for(2, 1, [&](size_t, size_t, unsigned worker) {
    inside.fetch_add(1);
    while (inside.load() < 2) std::this_thread::yield();
    cpu_set_t set;
    if (worker != 0 && sched_getaffinity(0, sizeof(set), &set) == 0) worker_processors.store(CPU_COUNT(&set));
  });
  EXPECT_EQ(worker_processors.load(), 1);
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&own, &after));  // the caller's thread stays as it was
}

}  // namespace
}  // namespace ds4
