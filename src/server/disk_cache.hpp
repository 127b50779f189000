// Conversations on disk, as the scheduler uses them: looked up and read on one thread, written on another.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ds4/engine.hpp"
#include "ds4/session.hpp"
#include "server/metrics.hpp"
#include "server/prompt.hpp"
#include "server/session_pool.hpp"
#include "store/background_writer.hpp"
#include "store/engine_state.hpp"
#include "store/state_store.hpp"

namespace ds4::server {

/// How a look at the disk ended.
enum class DiskResult {
  unused,  // nobody looked: there is no cache, the prompt is too short, or it was in memory
  hit,
  miss,
  failed,  // something was there, and could not be restored
};
std::string_view disk_result_name(DiskResult result);

/// A look at the disk, and what it found. Of the caller from done() on.
class DiskLook {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }

  DiskResult result = DiskResult::miss;
  bool no_memory = false;          // failed for want of it: with more, another look may do
  std::optional<Session> session;  // stands at a beginning of `tokens`
  std::vector<Token> tokens;       // what the session is to be brought to
  bool by_text = false;            // `tokens` begin with what was sampled, not with the prompt's own tokens
  double seconds = 0;

 private:
  friend class DiskCache;
  Prompt prompt_;
  size_t longer_than_ = 0;
  uint64_t context_ = 0;
  std::atomic<bool> done_{false};
};

/// Safe to use from several threads.
class DiskCache final : public ReplyArchive {
 public:
  /// Neither may end before the cache does.
  DiskCache(const Engine& engine, std::unique_ptr<store::StateStore> store, Metrics& metrics);
  ~DiskCache() override;

  const store::SavePolicy& policy() const { return store_->policy(); }

  /// Looks for a state of more than `longer_than` tokens with which `tokens` begin, the prompt's as far as
  /// they are not in memory, or a text that begins as the prompt's does. Null where that cannot be worth the
  /// while.
  std::shared_ptr<DiskLook> look(const Prompt& prompt, const std::vector<Token>& tokens, size_t longer_than,
                                 uint64_t context);
  /// `call` is called from the cache's thread whenever a look is done; not any more once another one, or an
  /// empty one, was set.
  void call_when_looked(std::function<void()> call);

  struct Save {
    store::SaveReason reason = store::SaveReason::turn;
    bool anchor = false;  // other conversations are likely to branch off here
    bool forced = false;  // however little was added since the last one
    bool branch = false;  // the conversation goes on from here, not from later states of this session
  };
  /// Writes the session's present state, later. Nothing if it is too short, or computed NaN.
  void save(const ResidentSession& resident, const Save& how);

  std::shared_ptr<const SampledReply> get_reply(std::string_view key) override;
  void put_reply(const std::vector<std::string>& keys,
                 const std::shared_ptr<const SampledReply>& reply) override;

  /// Forgets a state that waits to be written, for its memory. False if none waits.
  bool give_up_waiting() { return writer_.give_up_oldest(); }
  /// Waits for what is to be written. False if that takes longer.
  bool drain(std::chrono::milliseconds limit) { return writer_.drain(limit); }

 private:
  void run();
  void restore(const std::shared_ptr<DiskLook>& look);
  /// The session of a match, brought nowhere yet. `cancelled` is asked for every block.
  Result<Session> read(const store::StoreMatch& match, uint64_t context, std::function<bool()> cancelled);
  void add_metrics(Metrics& metrics);
  store::StoreStats recent_stats();

  const Engine& engine_;
  std::unique_ptr<store::StateStore> store_;
  store::BackgroundWriter writer_;
  Metric &hits_, &misses_, &failures_;
  Histogram& seconds_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<DiskLook>> looks_;
  bool stopping_ = false;
  std::mutex stats_mutex_;
  std::chrono::steady_clock::time_point stats_at_;
  store::StoreStats stats_;

  std::mutex call_mutex_;
  std::function<void()> when_looked_;
  std::thread thread_;
};

}  // namespace ds4::server
