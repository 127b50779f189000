// Writes states and replies to a store in a thread of its own, so that nobody waits for the disk.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/state_store.hpp"

namespace ds4::store {

struct StateJob {
  std::string lineage;  // the conversation; of one that grows only the newest state waits
  std::shared_ptr<const StateSource> source;
  WriteInfo info;
};

struct ReplyJob {
  std::vector<std::string> keys;
  std::vector<std::byte> bytes;
};

struct BackgroundWriterOptions {
  size_t most_states = 8;     // that wait
  size_t most_replies = 256;  // that wait
  /// Called from the writing thread after every state.
  std::function<void(const StateJob& job, const Result<WriteReport>& result)> on_written;
};

class BackgroundWriter {
 public:
  explicit BackgroundWriter(StateStore& store, BackgroundWriterOptions options = {});
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;
  /// Ends the write at work and gives up what waits: drain() first.
  ~BackgroundWriter();

  /// Takes the place of a waiting state of the same lineage, unless that is an anchor. When too many wait,
  /// the oldest that is not forced is given up; false if it is this one.
  bool post(StateJob job);
  /// Gives up a waiting state for its memory, the oldest; one that is forced only if all are. False if none
  /// waits.
  bool give_up_oldest();
  /// False if too many wait.
  bool post(ReplyJob job);
  /// Waits until nothing is left to write; false if that takes longer.
  bool drain(std::chrono::milliseconds timeout);

  struct Counts {
    size_t waiting = 0;     // states and replies, with the one at work
    uint64_t replaced = 0;  // by newer states of the same lineage
    uint64_t dropped = 0;   // because too many waited, or memory was short
  };
  Counts counts() const;

 private:
  using States = std::deque<StateJob>;
  void run();
  States::iterator least_needed();

  StateStore& store_;
  BackgroundWriterOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_, idle_;
  States states_;
  std::deque<ReplyJob> replies_;
  bool busy_ = false, stopping_ = false;
  uint64_t replaced_ = 0, dropped_ = 0;
  std::thread thread_;
};

}  // namespace ds4::store
