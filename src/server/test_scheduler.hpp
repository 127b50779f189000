// For tests: a scheduler whose answers come from a script, and what it tells.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduler.hpp"
#include "support/scripted_backend.hpp"

namespace ds4::server {

/// Collects the events of a request and waits for the last one.
class Listener : public EventSink {
 public:
  void on_event(const GenerationEvent& event) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    changed_.notify_all();
    if (leave_after_ > 0 && event.kind == GenerationEvent::Kind::content && --leave_after_ == 0) gone_ = true;
  }
  bool gone() const override { return gone_; }

  void leave() { gone_ = true; }
  void leave_after(size_t pieces) { leave_after_ = pieces; }
  bool wait(std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] {
      return !events_.empty() && (events_.back().kind == GenerationEvent::Kind::done ||
                                  events_.back().kind == GenerationEvent::Kind::failed);
    });
  }
  bool wait_for(GenerationEvent::Kind kind) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] {
      return std::any_of(events_.begin(), events_.end(), [&](const auto& e) { return e.kind == kind; });
    });
  }
  std::vector<GenerationEvent> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  std::string text(GenerationEvent::Kind kind, size_t choice = 0) const {
    std::string all;
    for (const GenerationEvent& event : events()) {
      if (event.kind == kind && event.choice == choice) all += event.text;
    }
    return all;
  }
  GenerationEvent find(GenerationEvent::Kind kind, size_t choice = 0) const {
    for (const GenerationEvent& event : events()) {
      if (event.kind == kind && event.choice == choice) return event;
    }
    ADD_FAILURE() << "no such event";
    return {};
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GenerationEvent> events_;
  std::atomic<bool> gone_{false};
  std::atomic<size_t> leave_after_{0};
};

/// Reasoning, a word, and a call of the tool of SchedulerTest::with_tool().
inline constexpr const char* kCall =
    "Let me look.</think>I will.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n"
    "<｜DSML｜parameter name=\"path\" string=\"true\">a b</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>";

class SchedulerTest : public ::testing::Test {
 protected:
  static constexpr const char* model = DS4_SOURCE_DIR "/models/nano/nano.gguf";

  void start(std::vector<testing::ScriptedReply> replies, SchedulerOptions options = {},
             testing::ScriptedOptions pace = {}) {
    pace.next = testing::scripted_assistant(testing::load_tokenizer(model), std::move(replies));
    engine_.emplace(testing::make_scripted_engine(model, std::move(pace), &counters_));
    options.on_request = [this](const RequestRecord& record) {
      const std::lock_guard lock(mutex_);
      records_.push_back(record);
    };
    ServerInfo info;
    info.default_max_tokens = 4000;
    scheduler_.emplace(*engine_, info, std::move(options), metrics_);
  }

  std::shared_ptr<Listener> submit(GenerationRequest request) {
    auto listener = std::make_shared<Listener>();
    scheduler_->submit(std::move(request), listener);
    return listener;
  }
  std::shared_ptr<Listener> ask(GenerationRequest request) {
    auto listener = submit(std::move(request));
    EXPECT_TRUE(listener->wait());
    EXPECT_TRUE(scheduler_->wait_idle(std::chrono::seconds(10)));
    return listener;
  }
  RequestRecord last_record() {
    const std::lock_guard lock(mutex_);
    return records_.back();
  }

  static GenerationRequest user(std::string text) {
    GenerationRequest request;
    request.messages.emplace_back();
    request.messages.back().content = std::move(text);
    request.seed = 1;
    return request;
  }
  static GenerationRequest with_tool(std::string text) {
    GenerationRequest request = user(std::move(text));
    request.tools = {{.name = "look",
                      .schema = R"({"name":"look"})",
                      .parameters = R"({"type":"object","properties":{"path":{"type":"string"}}})"}};
    return request;
  }

  testing::ScriptedCounters counters_;
  std::optional<Engine> engine_;
  Metrics metrics_;
  std::mutex mutex_;
  std::vector<RequestRecord> records_;
  std::optional<Scheduler> scheduler_;
};

}  // namespace ds4::server
