// Fixed pool of worker threads for data-parallel loops.
#pragma once

#include <cstddef>
#include <memory>

namespace ds4 {

/// Non-owning reference to the body of a loop: anything callable as f(begin, end, worker). Never allocates.
class LoopBody {
 public:
  template <class F>
  LoopBody(const F& f)  // NOLINT: implicit on purpose
      : object_(&f), call_([](const void* object, size_t begin, size_t end, unsigned worker) {
          (*static_cast<const F*>(object))(begin, end, worker);
        }) {}

  void operator()(size_t begin, size_t end, unsigned worker) const { call_(object_, begin, end, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, size_t, size_t, unsigned);
};

/// Runs loops over [0, count) on `threads` threads, the caller being one of them. Which thread runs which
/// index is not fixed, so a body must give the same result whichever runs it. Calls from several threads take
/// turns. Nothing is allocated after construction. Idle workers spin for some microseconds, then sleep.
class ThreadPool {
 public:
  /// threads 0 = one for each processor this process may use. pin: bind each worker to one processor (the
  /// caller's thread stays free to move). If the system refuses more threads, size() tells how many there
  /// are.
  explicit ThreadPool(unsigned threads = 0, bool pin = true);
  /// Precondition: no loop is running.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned size() const;

  /// body(begin, end, worker): a range of at most `grain` indices (0 counts as 1); worker in [0, size())
  /// names the thread's scratch space. Blocks until all ranges are done; what the bodies wrote is then
  /// visible to the caller. Must not be called from inside a body, which must not throw.
  void parallel_for(size_t count, size_t grain, LoopBody body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4
