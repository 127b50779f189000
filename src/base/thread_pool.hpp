// Fixed pool of worker threads for data-parallel loops.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace ds4 {

/// Runs loops over [0, count) on `threads` threads, the caller being one of them. Which thread runs which index
/// is not fixed, so a body must give the same result whichever runs it. Calls from several threads take turns.
class ThreadPool {
 public:
  /// threads 0 = one for each processor this process may use. pin: bind each worker to one processor.
  explicit ThreadPool(unsigned threads = 0, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned size() const;

  /// body(begin, end, worker): a range of at most `grain` indices; worker in [0, size()) names the thread's
  /// scratch space. Blocks until all ranges are done. Must not be called from inside a body.
  void parallel_for(size_t count, size_t grain, const std::function<void(size_t, size_t, unsigned)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4
