// Answers requests with one model: which of them runs when, in which session, and together with which others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "ds4/engine.hpp"
#include "server/constraint_cache.hpp"
#include "server/disk_cache.hpp"
#include "server/generator.hpp"
#include "server/job.hpp"
#include "server/metrics.hpp"
#include "server/prompt.hpp"
#include "server/session_pool.hpp"

namespace ds4::server {

struct SchedulerOptions {
  PoolLimits pool;
  size_t queue_limit = 256;  // requests that wait; more are refused with 429
  store::ReplyMemoryLimits memory;
  DiskCache* disk = nullptr;  // outlives the scheduler; may be null
  PromptOptions prompt;
  bool hold_to_promises = true;  // see AnswerOptions
  SpeculationOptions speculation;
  SteeringScales steering;
  /// Called from the scheduler's thread when a request has its session, before its prompt is evaluated. One
  /// that fails earlier has no beginning.
  std::function<void(const RequestRecord&)> on_begin;
  /// Called from there when a request is over.
  std::function<void(const RequestRecord&)> on_request;
  /// Called once, from there too, when the engine computes nothing any more, as after a fault of a GPU.
  /// Everything was told to fail then, and all that comes is refused.
  std::function<void(const std::string& why)> on_broken;
};

/// Counts what happens; part of Metrics.
struct SchedulerMetrics {
  explicit SchedulerMetrics(Metrics& metrics);
  void record(const RequestRecord& record);

  Metrics& all;
  Metric &waiting, &running, &sessions, &state_bytes, &evictions;
  Metric &prompt_tokens, &cached_tokens, &generated_tokens, &decode_steps;
  Histogram &queue_seconds, &first_token_seconds, &token_seconds, &batch_rows;
};

/// One thread does all the computing: slices of prompts in turn, and between two slices one step of all
/// answers at once. The HTTP side calls submit() and count() from any thread.
class Scheduler final : public Generator {
 public:
  /// `engine` and `metrics` must outlive it.
  Scheduler(const Engine& engine, ServerInfo info, SchedulerOptions options, Metrics& metrics);
  ~Scheduler() override;

  void submit(GenerationRequest request, std::shared_ptr<EventSink> sink) override;
  /// Sessions, answers and queue are left alone.
  Count count(const GenerationRequest& request) const override;
  const ServerInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return engine_.tokenizer(); }

  /// No new requests from now on (503).
  void refuse();
  /// True once nothing waits or runs; false if that took longer than `timeout`.
  bool wait_idle(std::chrono::milliseconds timeout);
  /// Fails what is left, and ends the thread.
  void stop();
  /// After stop(): has one more conversation written to disk. False if there is none left.
  bool save_next();

 private:
  using Clock = Job::Clock;

  /// An answer under way.
  struct Row {
    Job* job = nullptr;
    Choice* choice = nullptr;
  };

  Result<Constraints> make_constraints(const GenerationRequest& request);
  Result<std::optional<grammar::Constraint>> make_calls(const GenerationRequest& request);

  void run();
  void turn();
  /// After an exception, which is out of memory: ends all that runs, whatever state it is in.
  void give_up();
  void admit();
  /// True if the request follows another one from now on.
  bool follow(Job& job);
  bool leads(const Following& following) const;
  /// Also by way of others.
  bool waits_for(const Job& job, uint64_t leader) const;
  void start_followers();
  /// The state behind what others share with this request is kept.
  void stop_for_followers(Job& leader);
  /// To the client of a prompt, and to those of the requests that follow it.
  void report_progress(const Job& job, size_t position);
  void start(Job& job);
  /// The rest of start(), once it is known what the session begins with.
  void begin_prompt(Job& job);
  void drop_abandoned();
  void announce_waiting();
  bool work_waits();
  // With the disk: what was read, what is to be written. Nothing without one.
  void take_restored();
  void save_prompt(const Job& job);
  void save_growth(const Row& row);
  void save_turn(const Job& job);
  void look_on_disk(Job& job);
  bool free_memory(const Job& job);
  void prefill_slice();
  void sync_slice(Job& job);
  size_t quantum() const;  // tokens of a slice
  void begin_answers(Job& job);

  void decode_step();
  bool choose(const Row& row);
  bool decode_alone(const Row& row);
  Result<Token> pick(Choice& choice);
  std::optional<ScoredToken> score_token(const Choice& choice, Token token, size_t alternatives);
  /// Appends the last token of each.
  void evaluate(std::span<const Row> rows);
  void recover(const Row& row, Error error);
  void publish(Job& job, Choice& choice);
  void fail_job(Job& job, const RequestError& error, std::string outcome = "failed");
  void finish_if_done(Job& job);
  void remember(const Job& job, const Choice& choice);
  void retire(Job& job, std::string outcome, std::string error);
  /// What a client is told; after an error that should not be, looks whether the engine still works.
  RequestError engine_error(const Error& error);
  bool engine_works();
  void give_up_broken();
  std::string new_call_id(const std::string& prefix);
  void update_gauges();

  const Engine& engine_;
  const ServerInfo info_;
  const SchedulerOptions options_;
  SchedulerMetrics metrics_;
  mutable SharedReplyMemory memory_;
  SessionPool pool_;
  ConstraintCache constraints_;

  std::mutex mutex_;  // guards the next group
  std::condition_variable wake_, idle_;
  std::deque<std::unique_ptr<Job>> queue_;
  bool refusing_ = false;
  size_t running_ = 0;

  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> last_id_{0};
  std::list<std::unique_ptr<Job>> jobs_;  // the scheduler thread's own
  std::string broken_;                    // why the engine does not work any more
  bool told_broken_ = false;
  double tokens_per_second_ = 0;  // of prefill, measured
  uint64_t decode_steps_ = 0;
  std::thread thread_;
};

}  // namespace ds4::server
