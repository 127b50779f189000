#include "server/scheduler.hpp"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text/sampled_reply.hpp"

namespace ds4::server {
namespace {

using Kind = GenerationEvent::Kind;

// How long one slice of a prompt may keep the others waiting.
constexpr double slice_seconds_alone = 1.0, slice_seconds_shared = 0.2;
constexpr std::chrono::milliseconds progress_interval{500};
// A request that waits longer is told so, which begins its stream: from then on it is kept alive.
constexpr std::chrono::milliseconds silent_wait{1000};

// How often somebody looks whether a client is still there whose conversation is read from disk.
constexpr std::chrono::milliseconds look_interval{50};

RequestError shutting_down() {
  return {.status = 503, .type = "server_error", .message = "the server is shutting down"};
}

RequestError out_of_order(const std::string& why) {
  return {.status = 503,
          .type = "server_error",
          .message = "the engine does not work any more: " + why,
          .code = "engine_failed"};
}

// What leaves memory for others goes to disk, but for side requests, which are short, and dead ends.
std::function<void(const ResidentSession&)> evicted_to(DiskCache* disk) {
  if (disk == nullptr) return {};
  return [disk](const ResidentSession& resident) {
    if (resident.side || resident.dead_end) return;
    disk->save(resident, {.reason = store::SaveReason::evict, .forced = true});
  };
}

GenerationEvent make_event(Kind kind) {
  GenerationEvent event;
  event.kind = kind;
  return event;
}

}  // namespace

SchedulerMetrics::SchedulerMetrics(Metrics& metrics)
    : all(metrics),
      waiting(metrics.gauge("ds4_requests_waiting", "Requests in the queue.")),
      running(metrics.gauge("ds4_requests_running", "Requests being answered.")),
      sessions(metrics.gauge("ds4_sessions", "Conversations kept in memory.")),
      state_bytes(metrics.gauge("ds4_session_state_bytes", "Memory of their states.")),
      evictions(metrics.counter("ds4_session_evictions_total", "Conversations given up for others.")),
      prompt_tokens(metrics.counter("ds4_prompt_tokens_total", "Tokens of prompts.")),
      cached_tokens(metrics.counter("ds4_prompt_tokens_cached_total", "Of those, not computed again.")),
      generated_tokens(metrics.counter("ds4_generation_tokens_total", "Tokens generated.")),
      decode_steps(metrics.counter("ds4_decode_steps_total", "Passes that gave at least one token.")),
      queue_seconds(metrics.histogram("ds4_request_queue_seconds", "From arrival to being taken up.",
                                      {0.01, 0.1, 1, 10, 60, 600})),
      first_token_seconds(metrics.histogram("ds4_time_to_first_token_seconds",
                                            "From arrival to the first token.",
                                            {0.05, 0.1, 0.5, 1, 5, 10, 60, 600})),
      token_seconds(metrics.histogram("ds4_time_per_output_token_seconds", "Mean over an answer.",
                                      {0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5})),
      batch_rows(metrics.histogram("ds4_decode_batch_rows", "Answers per pass.", {1, 2, 4, 8, 16})) {}

void SchedulerMetrics::record(const RequestRecord& record) {
  const auto count = [&](std::string_view name, std::string_view help, const std::string& labels) {
    all.counter(name, help, labels).add();
  };
  count("ds4_requests_total", "Requests that are over.",
        fmt::format("kind=\"{}\",outcome=\"{}\"", record.kind, record.outcome));
  count("ds4_prompt_cache_total", "Requests by why not everything of the nearest conversation was continued.",
        fmt::format("miss=\"{}\"", miss_name(record.miss)));
  if (record.tools_malformed) count("ds4_tool_calls_malformed_total", "Answers with unreadable calls.", "");
  if (record.tools_repaired) count("ds4_tool_calls_repaired_total", "Answers with calls made good.", "");
  const auto count_all = [&](std::string_view name, std::string_view help, const char* labels,
                             size_t amount) {
    if (amount > 0) all.counter(name, help, labels).add(static_cast<double>(amount));
  };
  const char* promised = "Answers kept from ending behind the announcement of an action.";
  count_all("ds4_promised_actions_total", promised, "called=\"yes\"", record.promises_kept);
  count_all("ds4_promised_actions_total", promised, "called=\"no\"", record.promised - record.promises_kept);
  const char* closed = "Answers in a format whose end was written for them.";
  count_all("ds4_formats_closed_total", closed, "why=\"limit\"", record.closed_at_limit);
  count_all("ds4_formats_closed_total", closed, "why=\"loop\"", record.closed_in_loop);
  if (record.tool_reminders > 0)
    count("ds4_tool_reminders_total", "Prompts that remind of how tools are called.", "");
  if (record.thinking_looped) count("ds4_thinking_loops_total", "Reasoning that went round in circles.", "");
  prompt_tokens.add(static_cast<double>(record.usage.prompt_tokens));
  cached_tokens.add(static_cast<double>(record.usage.cached_tokens));
  queue_seconds.observe(record.queue_seconds);
  if (record.usage.completion_tokens > 0) {
    first_token_seconds.observe(record.queue_seconds + record.prefill_seconds);
    token_seconds.observe(record.decode_seconds / static_cast<double>(record.usage.completion_tokens));
  }
}

Scheduler::Scheduler(const Engine& engine, ServerInfo info, SchedulerOptions options, Metrics& metrics)
    : engine_(engine),
      info_(std::move(info)),
      options_(std::move(options)),
      metrics_(metrics),
      memory_(options_.memory, options_.disk),
      pool_(engine, options_.pool, evicted_to(options_.disk)),
      constraints_(engine.tokenizer()),
      thread_([this] { run(); }) {
  if (options_.disk == nullptr) return;
  options_.disk->call_when_looked([this] {
    {
      const std::lock_guard lock(mutex_);
    }  // or the thread could miss it while it falls asleep
    wake_.notify_all();
  });
}

Scheduler::~Scheduler() {
  stop();
  if (options_.disk != nullptr) options_.disk->call_when_looked({});
}

void Scheduler::refuse() {
  const std::lock_guard lock(mutex_);
  refusing_ = true;
}

bool Scheduler::wait_idle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [&] { return queue_.empty() && running_ == 0; });
}

void Scheduler::stop() {
  {
    // Under the mutex, or the thread could miss it between looking and falling asleep.
    const std::lock_guard lock(mutex_);
    refusing_ = true;
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Scheduler::run() {
  while (!stopping_) {
    {
      std::unique_lock lock(mutex_);
      while (!work_waits()) {
        // Clients may leave while their conversations are read from disk.
        if (jobs_.empty()) {
          wake_.wait(lock);
        } else if (wake_.wait_for(lock, look_interval) == std::cv_status::timeout) {
          break;
        }
      }
    }
    try {
      turn();
    } catch (...) {
      give_up();
    }
  }
  admit();
  while (!jobs_.empty()) fail_job(*jobs_.front(), shutting_down());
  update_gauges();
}

void Scheduler::turn() {
  drop_abandoned();  // first: who asks again at once finds the conversation free
  admit();
  start_followers();
  announce_waiting();
  take_restored();
  update_gauges();
  prefill_slice();
  decode_step();
  if (!broken_.empty()) give_up_broken();
  update_gauges();
}

RequestError Scheduler::engine_error(const Error& error) {
  if (error.code == ErrorCode::internal && broken_.empty() && !engine_works()) broken_ = error.message;
  if (!broken_.empty()) return out_of_order(broken_);
  const bool memory = error.code == ErrorCode::out_of_memory;
  return {.status = memory ? 503 : 500, .type = "server_error", .message = error.message};
}

// One token in a session of its own. Only what should never be counts: there may be no memory for it.
bool Scheduler::engine_works() {
  auto session = engine_.create_session(options_.pool.context);
  if (!session) return session.error().code != ErrorCode::internal;
  const auto synced = session->sync(std::array{tokenizer().special().bos});
  return synced || synced.error().code != ErrorCode::internal;
}

void Scheduler::give_up_broken() {
  std::deque<std::unique_ptr<Job>> waiting;
  {
    const std::lock_guard lock(mutex_);
    refusing_ = true;
    waiting.swap(queue_);
  }
  for (auto& job : waiting) jobs_.push_back(std::move(job));
  while (!jobs_.empty()) fail_job(*jobs_.front(), out_of_order(broken_));
  if (!std::exchange(told_broken_, true) && options_.on_broken) options_.on_broken(broken_);
}

void Scheduler::give_up() {
  while (!jobs_.empty()) {
    const Job* first = jobs_.front().get();
    try {
      fail_job(*jobs_.front(), {.status = 503, .type = "server_error", .message = "out of memory"});
    } catch (...) {
      // Its client sees the answer break off.
      if (!jobs_.empty() && jobs_.front().get() == first) jobs_.pop_front();
    }
  }
  pool_.forget_busy();
}

void Scheduler::update_gauges() {
  const std::lock_guard lock(mutex_);
  running_ = jobs_.size();
  metrics_.waiting.set(static_cast<double>(queue_.size()));
  metrics_.running.set(static_cast<double>(running_));
  metrics_.sessions.set(static_cast<double>(pool_.kept()));
  metrics_.state_bytes.set(static_cast<double>(pool_.state_bytes()));
  metrics_.evictions.set(static_cast<double>(pool_.evictions()));
  if (queue_.empty() && running_ == 0) idle_.notify_all();
}

// Takes up requests in the order of their arrival as long as a pass has room. The last one may have more
// answers than that: then a step takes two passes.
void Scheduler::admit() {
  while (true) {
    std::unique_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      size_t rows = 0;
      for (const auto& running : jobs_) rows += running->request.choices;
      if (queue_.empty()) return;
      if (!stopping_ && rows >= max_batch_rows) return;
      job = std::move(queue_.front());
      queue_.pop_front();
      running_ = jobs_.size() + 1;
    }
    jobs_.push_back(std::move(job));
    Job& taken = *jobs_.back();
    taken.taken = Clock::now();
    if (stopping_ || taken.sink->gone() || follow(taken)) continue;
    start(taken);
  }
}

void Scheduler::start(Job& job) {
  auto lease = pool_.acquire(job.prompt, job.request.conversation, job.request.side);
  if (!lease) {
    fail_job(job, engine_error(lease.error()));
    return;
  }
  job.lease = std::move(*lease);
  look_on_disk(job);
  if (job.look == nullptr) begin_prompt(job);
}

void Scheduler::begin_prompt(Job& job) {
  job.session().set_speculation(options_.speculation);
  job.session().set_steering(options_.steering);
  job.borders = prompt_borders(job.lease.tokens, tokenizer().special().user);
  stop_for_followers(job);
  job.max_tokens = std::min<size_t>(job.max_tokens, options_.pool.context - job.lease.tokens.size());
  job.usage.prompt_tokens = job.lease.tokens.size();
  job.usage.cached_tokens = job.session().nearest_reachable(job.lease.reusable);
  job.stops = job.borders;
  if (options_.disk != nullptr && !job.request.side) {
    job.save_points = save_points(options_.disk->policy(), tokenizer().special(), job.lease.tokens,
                                  job.usage.cached_tokens, job.prompt.forgets_reasoning);
    for (const SavePoint& point : job.save_points) job.stops.push_back(point.position);
    std::sort(job.stops.begin(), job.stops.end());
  }
  if (options_.disk != nullptr) {
    const size_t step = store::continued_step(options_.disk->policy());
    job.saved_steps = step == 0 ? 0 : job.lease.tokens.size() / step;
  }
  if (options_.on_begin) {
    options_.on_begin(make_record(job, {}, {}, tokenizer()));
    job.begun = true;
  }
  GenerationEvent started = make_event(Kind::started);
  started.usage = job.usage;
  job.sink->on_event(started);
}

void Scheduler::drop_abandoned() {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    Job& present = **job++;
    if (present.sink->gone()) retire(present, "cancelled", {});
  }
  std::vector<std::unique_ptr<Job>> left;
  {
    const std::lock_guard lock(mutex_);
    const auto gone = std::stable_partition(queue_.begin(), queue_.end(),
                                            [](const auto& job) { return !job->sink->gone(); });
    std::move(gone, queue_.end(), std::back_inserter(left));
    queue_.erase(gone, queue_.end());
  }
  for (const auto& job : left) {
    const RequestRecord record = make_record(*job, "cancelled", {}, tokenizer());
    metrics_.record(record);
    if (options_.on_request) options_.on_request(record);
  }
}

void Scheduler::announce_waiting() {
  const auto now = Clock::now();
  const auto announce = [&](Job& job) {
    if (job.announced || now - job.submitted < silent_wait) return;
    job.announced = true;
    GenerationEvent progress = make_event(Kind::progress);
    progress.usage.prompt_tokens = job.prompt.tokens.size();
    job.sink->on_event(progress);
  };
  for (const auto& job : jobs_) {
    if (job->following) announce(*job);
  }
  const std::lock_guard lock(mutex_);
  for (const auto& job : queue_) announce(*job);
}

size_t Scheduler::quantum() const {
  const bool alone = jobs_.size() == 1;
  return slice_tokens(tokens_per_second_ * (alone ? slice_seconds_alone : slice_seconds_shared),
                      engine_.prefill_chunk());
}

// One prompt gets one slice; the next one's turn comes next time.
void Scheduler::prefill_slice() {
  // Without a session: it follows another one, or its client had left when it was taken up.
  const auto next = std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) {
    return !job->prefilled && job->look == nullptr && job->lease.resident != nullptr;
  });
  if (next == jobs_.end()) return;
  Job& job = **next;
  jobs_.splice(jobs_.end(), jobs_, next);
  sync_slice(job);
}

void Scheduler::sync_slice(Job& job) {
  Session& session = job.session();
  const std::vector<Token>& tokens = job.lease.tokens;
  const size_t done = session.nearest_reachable(session.common_prefix(tokens));
  const size_t end = prefill_end(done, tokens.size(), quantum(), job.stops);
  SyncOptions control;
  control.cancelled = [&] { return stopping_ || job.sink->gone(); };
  control.on_progress = [&](size_t position, size_t) {
    const auto now = Clock::now();
    if (now - job.reported < progress_interval) return;
    job.reported = now;
    report_progress(job, position);
  };
  const auto begin = Clock::now();
  const auto synced = session.sync(std::span(tokens).first(end), control);
  if (!synced) {
    const ErrorCode code = synced.error().code;
    // Once more, next time, with the memory of a conversation that nobody is having.
    if (code == ErrorCode::out_of_memory && free_memory(job)) return;
    const bool cancelled = code == ErrorCode::cancelled;
    if (cancelled && !stopping_) return retire(job, "cancelled", {});
    return fail_job(job, cancelled ? shutting_down() : engine_error(synced.error()));
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (end - done >= least_quantum_tokens && seconds > 0) {
    const double rate = static_cast<double>(end - done) / seconds;
    tokens_per_second_ = tokens_per_second_ == 0 ? rate : 0.5 * (tokens_per_second_ + rate);
  }
  // Without memory for it going back takes longer, that is all.
  if (std::find(job.borders.begin(), job.borders.end(), end) != job.borders.end()) {
    static_cast<void>(session.keep_anchor());
  }
  save_prompt(job);
  if (end == tokens.size()) begin_answers(job);
}

void Scheduler::begin_answers(Job& job) {
  job.prefilled = true;
  job.answered = Clock::now();
  AnswerOptions options;
  options.thinking = job.prompt.thinking;
  options.tools = job.request.kind == GenerationRequest::Kind::chat && !job.request.tools.empty() &&
                  job.request.tool_choice != ToolChoice::none;
  options.one_call = options.tools && !job.request.parallel_tool_calls;
  options.split = job.request.kind == GenerationRequest::Kind::chat;
  options.sampling = job.request.sampling;
  options.max_tokens = std::max<size_t>(1, job.max_tokens);
  options.thinking_tokens = thinking_limit(job.request.thinking.budget_tokens, options.max_tokens);
  options.stop = job.request.stop;
  options.new_call_id = [this, prefix = job.request.tool_id_prefix] { return new_call_id(prefix); };
  options.constraint = job.constraints.answer;
  options.calls = job.constraints.calls;
  options.may_be_closed =
      job.request.tool_choice != ToolChoice::required && job.request.tool_choice != ToolChoice::named;
  options.hold_to_promises = options_.hold_to_promises;
  for (size_t i = 0; i < job.request.choices; ++i) {
    std::shared_ptr<ResidentSession> resident = job.lease.resident;
    if (i > 0) {
      auto copy = pool_.copy(*job.lease.resident, job.request.side);
      if (!copy) return fail_job(job, engine_error(copy.error()));
      resident = std::move(*copy);
      resident->session().set_steering(options_.steering);
    }
    job.choices.push_back({Answer(tokenizer(), options, i, job.seed + i), std::move(resident)});
  }
  if (job.max_tokens > 0) return;
  for (Choice& choice : job.choices) {
    choice.answer.finish(FinishReason::length);
    publish(job, choice);
  }
  finish_if_done(job);
}

void Scheduler::publish(Job& job, Choice& choice) {
  for (const GenerationEvent& event : choice.answer.take_events()) job.sink->on_event(event);
}

void Scheduler::finish_if_done(Job& job) {
  for (const Choice& choice : job.choices) {
    if (!choice.answer.finished()) return;
  }
  GenerationEvent done = make_event(Kind::done);
  std::string error;
  for (const Choice& choice : job.choices) {
    if (error.empty()) error = choice.answer.error();
    job.usage.completion_tokens += choice.answer.tokens().size();
    job.usage.reasoning_tokens += choice.answer.reasoning_tokens();
    remember(job, choice);
  }
  done.usage = job.usage;
  job.sink->on_event(done);
  retire(job, std::string(finish_name(job.choices.front().answer.finish_reason())), std::move(error));
}

// What was sampled comes back in the client's words; the memory knows it by the ids of its calls and by the
// transcript before it.
void Scheduler::remember(const Job& job, const Choice& choice) {
  const Answer& answer = choice.answer;
  if (job.request.kind != GenerationRequest::Kind::chat || answer.hit_stop()) return;
  if (answer.finish_reason() == FinishReason::error || answer.finish_reason() == FinishReason::length) return;
  const auto reply = text::sampled_reply(answer.tokens(), answer.reply().tool_block.size(),
                                         job.prompt.thinking, tokenizer());
  if (reply == nullptr) return;
  if (!answer.call_ids().empty()) return memory_.put(answer.call_ids(), reply);
  const TranscriptKeys keys = reply_keys(job.prompt.transcript, answer.reply().content);
  memory_.put({keys.exact, keys.local}, reply);
}

void Scheduler::fail_job(Job& job, const RequestError& error, std::string outcome) {
  GenerationEvent failed = make_event(Kind::failed);
  failed.error = error;
  job.sink->on_event(failed);
  retire(job, std::move(outcome), error.message);
}

void Scheduler::retire(Job& job, std::string outcome, std::string error) {
  const RequestRecord record = make_record(job, std::move(outcome), std::move(error), tokenizer());
  metrics_.record(record);
  if (options_.on_request) options_.on_request(record);
  save_turn(job);
  for (size_t i = 1; i < job.choices.size(); ++i) pool_.release(job.choices[i].resident, false);
  if (job.lease.resident) pool_.release(job.lease.resident, true);
  jobs_.remove_if([&](const auto& candidate) { return candidate.get() == &job; });
}

std::string Scheduler::new_call_id(const std::string& prefix) {
  while (true) {
    std::array<unsigned char, 16> bytes{};
    if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) return prefix;
    std::string id = prefix;
    for (const unsigned char byte : bytes) id += fmt::format("{:02x}", byte);
    if (!memory_.contains(id)) return id;
  }
}

}  // namespace ds4::server
