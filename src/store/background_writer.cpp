#include "store/background_writer.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace ds4::store {

BackgroundWriter::BackgroundWriter(StateStore& store, BackgroundWriterOptions options)
    : store_(store), options_(std::move(options)), thread_([this] { run(); }) {}

BackgroundWriter::~BackgroundWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    states_.clear();
    replies_.clear();
  }
  work_.notify_all();
  thread_.join();
}

bool BackgroundWriter::post(StateJob job) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return false;
  const auto waiting = std::find_if(states_.begin(), states_.end(), [&](const StateJob& other) {
    return !job.lineage.empty() && other.lineage == job.lineage && !other.info.anchor && !job.info.anchor;
  });
  if (waiting != states_.end()) {
    job.info.forced = job.info.forced || waiting->info.forced;
    states_.erase(waiting);
    ++replaced_;
  }
  states_.push_back(std::move(job));
  bool taken = true;
  if (states_.size() > options_.most_states) {
    auto victim = std::find_if(states_.begin(), states_.end(),
                               [](const StateJob& other) { return !other.info.forced; });
    if (victim == states_.end()) victim = states_.end() - 1;
    taken = victim != states_.end() - 1;
    states_.erase(victim);
    ++dropped_;
  }
  work_.notify_one();
  return taken;
}

bool BackgroundWriter::post(ReplyJob job) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || replies_.size() >= options_.most_replies) {
    ++dropped_;
    return false;
  }
  replies_.push_back(std::move(job));
  work_.notify_one();
  return true;
}

bool BackgroundWriter::give_up_oldest() {
  StateJob oldest;  // its memory is freed without the lock
  const std::lock_guard lock(mutex_);
  if (states_.empty()) return false;
  oldest = std::move(states_.front());
  states_.pop_front();
  ++dropped_;
  if (!busy_ && states_.empty() && replies_.empty()) idle_.notify_all();
  return true;
}

bool BackgroundWriter::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [&] { return !busy_ && states_.empty() && replies_.empty(); });
}

BackgroundWriter::Counts BackgroundWriter::counts() const {
  const std::lock_guard lock(mutex_);
  return {states_.size() + replies_.size() + (busy_ ? 1 : 0), replaced_, dropped_};
}

void BackgroundWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stopping_ || !states_.empty() || !replies_.empty(); });
    if (stopping_) return;
    busy_ = true;
    // Replies are small, and the next turn asks for them first.
    if (!replies_.empty()) {
      const ReplyJob job = std::move(replies_.front());
      replies_.pop_front();
      lock.unlock();
      const std::vector<std::string_view> keys(job.keys.begin(), job.keys.end());
      (void)store_.put_reply(keys, job.bytes);
      lock.lock();
    } else {
      StateJob job = std::move(states_.front());
      states_.pop_front();
      lock.unlock();
      const auto result = store_.write(*job.source, job.info);
      if (options_.on_written) options_.on_written(job, result);
      job.source.reset();  // may free much memory: not under the lock
      lock.lock();
    }
    busy_ = false;
    if (states_.empty() && replies_.empty()) idle_.notify_all();
  }
}

}  // namespace ds4::store
