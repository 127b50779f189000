#include "store/background_writer.hpp"

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

namespace ds4::store {
namespace {

/// Even the words of an error need memory; the thread goes on without.
template <class Work>
bool succeeds(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

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

BackgroundWriter::States::iterator BackgroundWriter::least_needed() {
  return std::find_if(states_.begin(), states_.end(),
                      [](const StateJob& other) { return !other.info.forced; });
}

bool BackgroundWriter::post(StateJob job) {
  StateJob given_up;  // may free much memory: not under the lock
  const std::lock_guard lock(mutex_);
  if (stopping_) return false;
  const auto waiting = std::find_if(states_.begin(), states_.end(), [&](const StateJob& other) {
    return !job.lineage.empty() && other.lineage == job.lineage && !other.info.anchor && !job.info.anchor;
  });
  if (waiting != states_.end()) {
    job.info.forced = job.info.forced || waiting->info.forced;
    given_up = std::move(*waiting);
    states_.erase(waiting);
    ++replaced_;
  }
  states_.push_back(std::move(job));
  bool taken = true;
  if (states_.size() > options_.most_states) {
    auto victim = least_needed();
    if (victim == states_.end()) victim = states_.end() - 1;
    taken = victim != states_.end() - 1;
    given_up = std::move(*victim);
    states_.erase(victim);
    ++dropped_;
  }
  work_.notify_one();
  return taken;
}

bool BackgroundWriter::give_up_oldest() {
  StateJob given_up;
  const std::lock_guard lock(mutex_);
  if (states_.empty()) return false;
  auto victim = least_needed();
  if (victim == states_.end()) victim = states_.begin();
  given_up = std::move(*victim);
  states_.erase(victim);
  ++dropped_;
  if (!busy_ && states_.empty() && replies_.empty()) idle_.notify_all();
  return true;
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
    bool done = true;
    // Replies are small, and the next turn asks for them first.
    if (!replies_.empty()) {
      const ReplyJob job = std::move(replies_.front());
      replies_.pop_front();
      lock.unlock();
      done = succeeds([&] {
        const std::vector<std::string_view> keys(job.keys.begin(), job.keys.end());
        (void)store_.put_reply(keys, job.bytes);
      });
      lock.lock();
    } else {
      StateJob job = std::move(states_.front());
      states_.pop_front();
      lock.unlock();
      done = succeeds([&] {
        const auto result = store_.write(*job.source, job.info);
        if (options_.on_written) options_.on_written(job, result);
      });
      job.source.reset();  // may free much memory: not under the lock
      lock.lock();
    }
    if (!done) ++dropped_;
    busy_ = false;
    if (states_.empty() && replies_.empty()) idle_.notify_all();
  }
}

}  // namespace ds4::store
