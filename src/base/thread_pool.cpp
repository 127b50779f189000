#include "base/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ds4 {
namespace {

/// Long enough to bridge the gap between two operations of a decode step, short enough not to burn a
/// processor.
constexpr std::chrono::microseconds kSpinTime{50};
constexpr int kPausesPerClockRead = 32;

void pause_processor() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// True as soon as `condition` holds, false when the time is over first.
template <class Condition>
bool spin_until(std::chrono::microseconds limit, const Condition& condition) {
  if (condition()) return true;
  if (limit.count() == 0) return false;
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      pause_processor();
      if (condition()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

/// Processors this process may run on; at least one entry.
std::vector<int> allowed_processors() {
  std::vector<int> result;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) result.push_back(i);
    }
  }
  if (result.empty()) {
    const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    for (int i = 0; i < count; ++i) result.push_back(i);
  }
  return result;
}

/// Best effort: a refusal only costs speed.
void pin_this_thread(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof(set), &set);
}

// The state word of the current loop: how many workers are inside it, whether more may enter, and its number.
// A worker enters by compare-and-swap, so one that wakes late finds the loop closed and never touches its
// fields; the caller does not wait for workers that did not get a processor in time.
constexpr uint64_t kActiveMask = 0xffff;
constexpr uint64_t kOpen = 1 << 16;
constexpr uint64_t kNumberStep = 1 << 17;
constexpr uint64_t kNumberMask = ~(kNumberStep - 1);
constexpr unsigned kMaxThreads = 4096;

}  // namespace

struct ThreadPool::Impl {
  // Fields of the current loop: written only while the loop is closed and no worker is inside.
  const LoopBody* body = nullptr;
  size_t count = 0;
  size_t grain = 1;

  alignas(64) std::atomic<size_t> next_range{0};
  alignas(64) std::atomic<uint64_t> state{0};
  alignas(64) std::atomic<unsigned> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stop{false};

  std::mutex sleep_mutex;
  std::condition_variable work_arrived;
  std::condition_variable loop_done;

  std::mutex turn;  // held by the thread whose loop is running
  std::chrono::microseconds spin_time{0};
  std::vector<std::thread> workers;

  void run_ranges(unsigned worker) {
    const size_t ranges = count / grain + (count % grain != 0);
    for (;;) {
      const size_t range = next_range.fetch_add(1, std::memory_order_relaxed);
      if (range >= ranges) return;
      const size_t begin = range * grain;
      (*body)(begin, begin + std::min(grain, count - begin), worker);
    }
  }

  /// Number of the loop this worker is now inside, or nothing to enter: returns `last`.
  uint64_t try_enter(uint64_t last) {
    uint64_t seen = state.load();
    while ((seen & kOpen) != 0 && (seen & kNumberMask) != last) {
      if (state.compare_exchange_weak(seen, seen + 1)) return seen & kNumberMask;
    }
    return last;
  }

  bool has_work(uint64_t last) const {
    const uint64_t seen = state.load();
    return ((seen & kOpen) != 0 && (seen & kNumberMask) != last) || stop.load();
  }

  void leave() {
    const uint64_t after = state.fetch_sub(1) - 1;
    if ((after & (kActiveMask | kOpen)) == 0 && caller_sleeps.load()) {
      const std::lock_guard lock(sleep_mutex);
      loop_done.notify_one();
    }
  }

  void worker_main(unsigned worker) {
    uint64_t last = 0;
    while (!stop.load()) {
      const uint64_t entered = try_enter(last);
      if (entered != last) {
        last = entered;
        run_ranges(worker);
        leave();
      } else if (!spin_until(spin_time, [&] { return has_work(last); })) {
        // sleepers is raised before the state is read, and open_loop() reads it after writing the state: one
        // of the two sides sees the other.
        std::unique_lock lock(sleep_mutex);
        sleepers.fetch_add(1);
        work_arrived.wait(lock, [&] { return has_work(last); });
        sleepers.fetch_sub(1);
      }
    }
  }

  void wake_sleepers() {
    if (sleepers.load() == 0) return;
    const std::lock_guard lock(sleep_mutex);
    work_arrived.notify_all();
  }

  void open_loop() {
    const uint64_t number = (state.load(std::memory_order_relaxed) & kNumberMask) + kNumberStep;
    state.store(number | kOpen);
    wake_sleepers();
  }

  /// Lets no more workers in and waits for those inside.
  void close_loop() {
    state.fetch_and(~kOpen);
    const auto empty = [&] { return (state.load() & kActiveMask) == 0; };
    if (spin_until(spin_time, empty)) return;
    caller_sleeps.store(true);
    {
      std::unique_lock lock(sleep_mutex);
      loop_done.wait(lock, empty);
    }
    caller_sleeps.store(false);
  }
};

ThreadPool::ThreadPool(unsigned threads, bool pin) : impl_(std::make_unique<Impl>()) {
  const std::vector<int> processors = allowed_processors();
  const unsigned wanted =
      std::min(threads == 0 ? static_cast<unsigned>(processors.size()) : threads, kMaxThreads);
  // With more threads than processors, spinning would only keep a thread with work from running.
  if (wanted <= processors.size()) impl_->spin_time = kSpinTime;
  impl_->workers.reserve(wanted - 1);
  for (unsigned worker = 1; worker < wanted; ++worker) {
    const int processor = pin ? processors[worker % processors.size()] : -1;
    try {
      impl_->workers.emplace_back([impl = impl_.get(), worker, processor] {
        if (processor >= 0) pin_this_thread(processor);
        impl->worker_main(worker);
      });
    } catch (const std::system_error&) {
      break;
    }
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true);
  {
    const std::lock_guard lock(impl_->sleep_mutex);
    impl_->work_arrived.notify_all();
  }
  for (std::thread& worker : impl_->workers) worker.join();
}

unsigned ThreadPool::size() const {
  return static_cast<unsigned>(impl_->workers.size()) + 1;
}

void ThreadPool::parallel_for(size_t count, size_t grain, LoopBody body) {
  if (count == 0) return;
  const std::lock_guard lock(impl_->turn);
  impl_->body = &body;
  impl_->count = count;
  impl_->grain = std::max<size_t>(grain, 1);
  impl_->next_range.store(0, std::memory_order_relaxed);
  const bool alone = impl_->workers.empty() || count <= impl_->grain;
  if (!alone) impl_->open_loop();
  impl_->run_ranges(0);
  if (!alone) impl_->close_loop();
}

}  // namespace ds4
