#include "server/scheduler.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "support/scripted_backend.hpp"

namespace ds4::server {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Kind = GenerationEvent::Kind;

/// Collects the events of a request and waits for the last one.
class Listener : public EventSink {
 public:
  void on_event(const GenerationEvent& event) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    changed_.notify_all();
    if (leave_after_ > 0 && event.kind == Kind::content && --leave_after_ == 0) gone_ = true;
  }
  bool gone() const override { return gone_; }

  void leave() { gone_ = true; }
  void leave_after(size_t pieces) { leave_after_ = pieces; }
  bool wait(std::chrono::milliseconds timeout = 10s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] {
      return !events_.empty() && (events_.back().kind == Kind::done || events_.back().kind == Kind::failed);
    });
  }
  bool wait_for(Kind kind) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 10s, [&] {
      return std::any_of(events_.begin(), events_.end(), [&](const auto& e) { return e.kind == kind; });
    });
  }
  std::vector<GenerationEvent> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  std::string text(Kind kind, size_t choice = 0) const {
    std::string all;
    for (const GenerationEvent& event : events()) {
      if (event.kind == kind && event.choice == choice) all += event.text;
    }
    return all;
  }
  GenerationEvent find(Kind kind, size_t choice = 0) const {
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

constexpr const char* kCall =
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
    EXPECT_TRUE(scheduler_->wait_idle(10s));
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

TEST_F(SchedulerTest, ReasoningAndAnswer) {
  start({{"hi", "User greets.</think>Hello!"}});
  const auto told = ask(user("hi"));
  EXPECT_EQ(told->text(Kind::reasoning), "User greets.");
  EXPECT_EQ(told->text(Kind::content), "Hello!");
  EXPECT_EQ(told->events().front().kind, Kind::started);
  const GenerationEvent finished = told->find(Kind::finished);
  EXPECT_EQ(finished.finish, FinishReason::stop);
  EXPECT_TRUE(finished.reasoning_complete);
  const Usage usage = told->find(Kind::done).usage;
  EXPECT_EQ(usage.completion_tokens,
            scheduler_->tokenizer().encode_rendered("User greets.</think>Hello!").size());
  EXPECT_EQ(usage.reasoning_tokens, scheduler_->tokenizer().encode_plain("User greets.").size() + 1);
  EXPECT_EQ(usage.cached_tokens, 0u);
  EXPECT_THAT(metrics_.render(), HasSubstr("ds4_requests_total{kind=\"chat\",outcome=\"stop\"} 1"));
}

TEST_F(SchedulerTest, CallsAndTheirResults) {
  start({{"tool_result", "I see.</think>Done."}, {"look", kCall}});
  GenerationRequest request = with_tool("look");
  const auto told = ask(request);
  EXPECT_EQ(told->text(Kind::content), "I will.");
  const GenerationEvent begin = told->find(Kind::call_begin);
  EXPECT_EQ(begin.text, "look");
  EXPECT_EQ(begin.id.size(), 37u);
  EXPECT_EQ(told->text(Kind::call_arguments), R"({"path":"a b"})");
  EXPECT_EQ(told->find(Kind::call_end).text, R"({"path":"a b"})");
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::tool_calls);

  // The client drops the reasoning and writes the arguments in its own way: all the same only the result is
  // computed.
  ChatMessage call, result;
  call.role = Role::assistant;
  call.content = "I will.";
  call.tool_calls = {{begin.id, "look", R"({ "path" : "a b" })"}};
  result.role = Role::tool;
  result.tool_call_id = begin.id;
  result.content = "nothing";
  request.messages.push_back(call);
  request.messages.push_back(result);
  const auto next = ask(request);
  EXPECT_EQ(next->text(Kind::content), "Done.");
  const Usage first = told->find(Kind::done).usage, second = next->find(Kind::done).usage;
  EXPECT_EQ(second.cached_tokens, first.prompt_tokens + first.completion_tokens);
  EXPECT_EQ(last_record().miss, Miss::none);
}

TEST_F(SchedulerTest, FinalAnswersOfToolConversationsAreContinued) {
  start({{"again", "b</think>Yes."}, {"", "because</think>Fine."}});
  GenerationRequest request = with_tool("look");
  const auto told = ask(request);
  ChatMessage answer, more;
  answer.role = Role::assistant;
  answer.content = "Fine.";
  more.content = "again";
  request.messages.insert(request.messages.end(), {answer, more});
  const auto next = ask(request);
  const Usage first = told->find(Kind::done).usage, second = next->find(Kind::done).usage;
  EXPECT_EQ(second.cached_tokens, first.prompt_tokens + first.completion_tokens);
}

// Without tools old reasoning is not shown again: the session goes back to where it began.
TEST_F(SchedulerTest, OldReasoningIsDroppedByGoingBackOneToken) {
  start({{"again", "b</think>Yes."}, {"", "because</think>Fine."}});
  GenerationRequest request = user("look");
  const auto told = ask(request);
  ChatMessage answer, more;
  answer.role = Role::assistant;
  answer.content = "Fine.";
  more.content = "again";
  request.messages.insert(request.messages.end(), {answer, more});
  const auto next = ask(request);
  EXPECT_EQ(next->find(Kind::done).usage.cached_tokens, told->find(Kind::done).usage.prompt_tokens - 1);
  EXPECT_EQ(last_record().miss, Miss::diverged);
}

// Clients put the time into the system text, and reminders into the last turn.
TEST_F(SchedulerTest, AChangedLastTurnKeepsWhatIsBeforeIt) {
  start({{"", "a</think>Fine."}});
  std::string words;
  for (int i = 0; i < 500; ++i) words += fmt::format("w{} ", i);
  GenerationRequest request = user(words);
  request.messages.insert(request.messages.begin(), ChatMessage{Role::system, words, {}, {}, {}, {}});
  ChatMessage answer, more;
  answer.role = Role::assistant;
  answer.content = "Fine.";
  more.content = "now it is ten o'clock, " + words;
  request.messages.insert(request.messages.end(), {answer, more});
  const auto told = ask(request);
  request.messages.back().content = "now it is eleven o'clock, " + words;
  const size_t turn = scheduler_->tokenizer().encode_plain(request.messages.back().content).size();
  const Usage changed = ask(request)->find(Kind::done).usage;
  EXPECT_EQ(changed.cached_tokens, changed.prompt_tokens - turn - 3);  // user, assistant, <think>
  // Another conversation with this system text.
  request.messages.resize(2);
  request.messages.back().content = "other";
  const Usage other = ask(request)->find(Kind::done).usage;
  EXPECT_EQ(other.cached_tokens,
            other.prompt_tokens - scheduler_->tokenizer().encode_plain("other").size() - 3);
}

TEST_F(SchedulerTest, StopStringsCountInTheAnswerOnly) {
  start({{"", "one STOP two</think>three STOP four"}});
  GenerationRequest request = user("x");
  request.stop = {"STOP"};
  const auto told = ask(request);
  EXPECT_EQ(told->text(Kind::reasoning), "one STOP two");
  EXPECT_EQ(told->text(Kind::content), "three ");
  EXPECT_EQ(told->find(Kind::finished).stop_sequence, "STOP");
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::stop);
}

TEST_F(SchedulerTest, ReasoningLeavesRoomForTheAnswer) {
  start({{"", "round and round ", true}});
  GenerationRequest request = user("x");
  request.max_tokens = 40;
  const auto told = ask(request);
  const GenerationEvent finished = told->find(Kind::finished);
  EXPECT_EQ(finished.finish, FinishReason::length);
  EXPECT_TRUE(finished.reasoning_complete);
  EXPECT_FALSE(told->text(Kind::content).empty());
  EXPECT_EQ(told->find(Kind::done).usage.completion_tokens, 40u);
  EXPECT_EQ(told->find(Kind::done).usage.reasoning_tokens, 31u);
}

TEST_F(SchedulerTest, ThinkingBudget) {
  start({{"", "a b c d e f g h i j k l m n</think>ok"}});
  GenerationRequest request = user("x");
  request.thinking.budget_tokens = 5;
  const auto told = ask(request);
  EXPECT_EQ(told->text(Kind::content), "ok");
  EXPECT_EQ(told->find(Kind::done).usage.reasoning_tokens, 6u);
}

TEST_F(SchedulerTest, SeveralAnswersAndSeveralRequestsAtOnce) {
  start({{"three", "</think>AAAA"}, {"one", "</think>BBBB"}}, {}, {.per_pass = 2ms});
  GenerationRequest request = user("three");
  request.choices = 3;
  const auto three = submit(request), one = submit(user("one"));
  EXPECT_TRUE(three->wait() && one->wait());
  for (size_t choice = 0; choice < 3; ++choice) EXPECT_EQ(three->text(Kind::content, choice), "AAAA");
  EXPECT_EQ(one->text(Kind::content), "BBBB");
  EXPECT_GT(counters_.decode_rows, counters_.decode_passes);
}

TEST_F(SchedulerTest, RequiredCallsAreForced) {
  start({{"", "hm</think>I would rather talk."}});
  GenerationRequest request = with_tool("look");
  request.tool_choice = ToolChoice::required;
  request.max_tokens = 2000;
  const auto told = ask(request);
  EXPECT_EQ(told->text(Kind::content), "");
  EXPECT_EQ(told->find(Kind::call_begin).text, "look");
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::tool_calls);
  request.tool_choice = ToolChoice::named;
  request.tool_choice_name = "other";
  EXPECT_THAT(ask(request)->find(Kind::failed).error.message, HasSubstr("other"));
}

TEST_F(SchedulerTest, JsonAnswers) {
  start({{"", "hm</think>No JSON for you."}});
  GenerationRequest request = user("x");
  request.format = {
      .kind = ResponseFormat::Kind::json_schema,
      .schema = R"({"type":"object","properties":{"n":{"type":"integer","maximum":9,"minimum":0}},
                                  "required":["n"],"additionalProperties":false})",
      .strict = true};
  request.max_tokens = 200;
  const auto told = ask(request);
  EXPECT_THAT(told->text(Kind::content), ::testing::MatchesRegex("\\{\\s*\"n\":\\s*[0-9]\\s*\\}\\s*"));
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::stop);
  request.format.schema = R"({"not":{}})";
  EXPECT_THAT(ask(request)->find(Kind::failed).error.message, HasSubstr("not"));
}

TEST_F(SchedulerTest, BlockWithoutReadableCallsIsNoCall) {
  std::string broken = kCall;
  broken.replace(broken.find("string=\"true\""), 13, "string=\"false\"");
  start({{"", broken}});
  const auto told = ask(with_tool("look"));
  EXPECT_EQ(told->text(Kind::content), "I will.");
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::stop);
}

TEST_F(SchedulerTest, Logprobs) {
  start({{"", "</think>ab"}});
  GenerationRequest request = user("x");
  request.logprobs = true;
  request.top_logprobs = 2;
  const auto told = ask(request);
  std::string bytes;
  for (const GenerationEvent& event : told->events()) {
    for (const ScoredToken& score : event.scores) {
      if (event.kind != Kind::content) continue;
      bytes += score.bytes;
      EXPECT_NEAR(score.logprob, 0, 1e-3);
      ASSERT_EQ(score.top.size(), 2u);
      EXPECT_EQ(score.top[0].bytes, score.bytes);
    }
  }
  EXPECT_EQ(bytes, "ab");  // without the tag before it
}

TEST_F(SchedulerTest, LongPromptsLeaveTheOthersTheirTurns) {
  start({{"long", "</think>L"}, {"", "</think>" + std::string(200, 's')}}, {},
        {.per_pass = 1ms, .per_prompt_token = 100us});
  std::string words;
  for (int i = 0; i < 4000; ++i) words += fmt::format("w{} ", i % 10);
  const auto brief = submit(user("short"));
  EXPECT_TRUE(brief->wait_for(Kind::content));
  const auto slow = submit(user("long " + words));
  EXPECT_TRUE(brief->wait());
  EXPECT_TRUE(slow->wait());
  EXPECT_EQ(brief->text(Kind::content).size(), 200u);
  EXPECT_EQ(slow->text(Kind::content), "L");
  EXPECT_THAT(slow->events(), ::testing::Contains(::testing::Field(&GenerationEvent::kind, Kind::progress)));
}

TEST_F(SchedulerTest, AClientThatLeavesLeavesItsPrefix) {
  start({{"", "</think>" + std::string(2000, 's')}}, {}, {.per_pass = 1ms});
  auto listener = std::make_shared<Listener>();
  listener->leave_after(5);
  GenerationRequest request = user("hello");
  scheduler_->submit(request, listener);
  EXPECT_TRUE(scheduler_->wait_idle(10s));
  EXPECT_EQ(last_record().outcome, "cancelled");
  EXPECT_LT(last_record().generated.size(), 1000u);
  request.max_tokens = 3;
  const auto again = ask(request);
  const Usage usage = again->find(Kind::done).usage;
  EXPECT_EQ(usage.cached_tokens, usage.prompt_tokens);
}

TEST_F(SchedulerTest, AClientThatLeavesDuringThePromptIsNoticed) {
  start({{"", "</think>x"}}, {}, {.per_prompt_token = 1ms});
  std::string words;
  for (int i = 0; i < 3000; ++i) words += fmt::format("w{} ", i % 10);
  const auto listener = submit(user(words));
  EXPECT_TRUE(listener->wait_for(Kind::started));
  listener->leave();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(scheduler_->wait_idle(10s));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  EXPECT_EQ(last_record().outcome, "cancelled");
}

TEST_F(SchedulerTest, TheQueueHasALimit) {
  start({{"", "</think>" + std::string(400, 's')}}, {.queue_limit = 2}, {.per_pass = 1ms});
  std::vector<std::shared_ptr<Listener>> all;
  for (int i = 0; i < 30; ++i) all.push_back(submit(user(fmt::format("x{}", i))));
  size_t refused = 0;
  for (const auto& listener : all) {
    EXPECT_TRUE(listener->wait());
    if (listener->events().back().kind != Kind::failed) continue;
    EXPECT_EQ(listener->events().back().error.status, 429);
    ++refused;
  }
  EXPECT_GE(refused, 8u);
  EXPECT_LE(refused, 28u);
}

TEST_F(SchedulerTest, WhoWaitsIsTold) {
  start({{"", "</think>" + std::string(1500, 's')}}, {}, {.per_pass = 1ms});
  std::vector<std::shared_ptr<Listener>> all;
  for (int i = 0; i < 17; ++i) all.push_back(submit(user(fmt::format("x{}", i))));
  EXPECT_TRUE(all.back()->wait_for(Kind::progress));
  EXPECT_EQ(all.back()->events().front().total, 0u);
  EXPECT_GT(all.back()->events().front().usage.prompt_tokens, 0u);
  EXPECT_TRUE(all.back()->wait(20s));
  EXPECT_EQ(all.back()->events().back().kind, Kind::done);
}

TEST_F(SchedulerTest, TooLongAPromptIsRefusedWithNumbers) {
  start({{"", "</think>x"}}, {.pool = {.context = 64}});
  std::string words;
  for (int i = 0; i < 200; ++i) words += fmt::format("w{} ", i);
  const RequestError error = ask(user(words))->find(Kind::failed).error;
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.context, 64u);
  EXPECT_EQ(error.prompt_tokens, scheduler_->count(user(words)).prompt_tokens);
  EXPECT_EQ(ask(user("fits"))->find(Kind::finished).finish, FinishReason::stop);
}

TEST_F(SchedulerTest, AnswersEndWithTheContext) {
  start({{"", "</think>more and ", true}}, {.pool = {.context = 64}});
  const auto told = ask(user("x"));
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::length);
  const Usage usage = told->find(Kind::done).usage;
  EXPECT_EQ(usage.prompt_tokens + usage.completion_tokens, 64u);
}

// What was sampled may take more tokens than its text does; the room that is left counts from there.
TEST_F(SchedulerTest, AnswersEndWithTheContextBehindSampledTokensToo) {
  start({});
  std::vector<Token> letters;
  for (const char letter : std::string(" the")) {
    for (const Token token : engine_->tokenizer().encode_plain({&letter, 1})) letters.push_back(token);
  }
  const SpecialTokens special = engine_->tokenizer().special();
  const auto next = [&](std::span<const Token> history) {
    const auto last = std::find(history.rbegin(), history.rend(), special.user);
    const auto since = static_cast<size_t>(last - history.rbegin());
    const bool first_turn = std::count(history.begin(), history.end(), special.user) == 1;
    return first_turn && since >= 60 ? special.eos : letters[since % letters.size()];
  };
  for (const size_t context : {82, 75, 66}) {
    scheduler_.reset();
    engine_.emplace(testing::make_scripted_engine(model, {.next = next}));
    scheduler_.emplace(*engine_, ServerInfo{.default_max_tokens = 4000},
                       SchedulerOptions{.pool = {.context = context}}, metrics_);
    GenerationRequest request = user("x");
    request.thinking.mode = ThinkMode::none;
    const auto first = ask(request);
    ASSERT_EQ(first->find(Kind::finished).finish, FinishReason::stop);
    request.messages.emplace_back().role = Role::assistant;
    request.messages.back().content = first->text(Kind::content);
    request.messages.emplace_back().content = "and";
    ASSERT_LT(scheduler_->count(request).prompt_tokens, 50u);
    const auto second = ask(request);
    ASSERT_EQ(second->events().back().kind, Kind::done) << second->events().back().error.message;
    const Usage usage = second->find(Kind::done).usage;
    EXPECT_EQ(second->find(Kind::finished).finish, FinishReason::length);
    EXPECT_EQ(usage.prompt_tokens + usage.completion_tokens, context);
    EXPECT_EQ(usage.prompt_tokens > 60, context > 66) << usage.prompt_tokens;
  }
}

TEST_F(SchedulerTest, NanFailsTheRequestOnly) {
  start({});
  scheduler_.reset();
  engine_.emplace(testing::make_scripted_engine(
      model, {.next = [](std::span<const Token> history) { return history.size() % 40 == 39 ? -1 : 300; }}));
  SchedulerOptions options;
  options.on_request = [this](const RequestRecord& record) { records_.push_back(record); };
  scheduler_.emplace(*engine_, ServerInfo{.default_max_tokens = 4000}, std::move(options), metrics_);
  GenerationRequest request = user("x");
  request.thinking.mode = ThinkMode::none;
  const auto told = ask(request);
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::error);
  EXPECT_THAT(told->find(Kind::finished).error.message, HasSubstr("NaN"));
  EXPECT_EQ(records_.back().error, told->find(Kind::finished).error.message);
  request.max_tokens = 2;
  EXPECT_EQ(ask(request)->find(Kind::finished).finish, FinishReason::length);
}

// A GPU that lost its state fails every call from then on: better no server than one that lingers.
TEST_F(SchedulerTest, AnEngineThatDoesNotWorkAnyMoreIsToldOnce) {
  std::atomic<size_t> failing{0};
  std::atomic<int> told{0};
  SchedulerOptions options;
  options.on_broken = [&](const std::string& why) {
    EXPECT_THAT(why, HasSubstr("device failed"));
    ++told;
  };
  start({{"", "</think>on and on ", true}}, std::move(options),
        {.per_pass = 1ms, .failing_passes = &failing});
  const auto once = submit(user("once"));
  EXPECT_TRUE(once->wait_for(Kind::content));
  failing = 1;
  EXPECT_TRUE(once->wait());
  EXPECT_EQ(once->find(Kind::finished).error.status, 500);
  const auto running = submit(user("x")), beside = submit(user("y"));
  EXPECT_TRUE(running->wait_for(Kind::content));
  EXPECT_TRUE(beside->wait_for(Kind::content));
  EXPECT_EQ(told, 0);
  failing = SIZE_MAX;
  EXPECT_TRUE(running->wait());
  EXPECT_TRUE(beside->wait());
  EXPECT_TRUE(scheduler_->wait_idle(10s));
  EXPECT_EQ(running->find(Kind::finished).error.code, "engine_failed");
  const auto later = submit(user("z"));
  EXPECT_EQ(later->events().back().error.status, 503);
  EXPECT_EQ(told, 1);
  scheduler_.reset();
}

TEST_F(SchedulerTest, PromptsTakeTheMemoryOfIdleConversations) {
  start({{"", "</think>Fine."}}, {}, {.memory_tokens = 2000});
  std::string words;
  for (int i = 0; i < 300; ++i) words += fmt::format("w{} ", i);
  for (int i = 0; i < 6; ++i) {
    const auto told = ask(user(fmt::format("number {} ", i) + words));
    ASSERT_EQ(told->events().back().kind, Kind::done) << told->events().back().error.message;
  }
}

// Nothing that goes wrong on the way to one client may end the process.
TEST_F(SchedulerTest, OutOfMemoryInASinkFailsWhatRunsAndNothingElse) {
  class Thrower : public Listener {
   public:
    void on_event(const GenerationEvent& event) override {
      if (event.kind == Kind::content) throw std::bad_alloc();
      Listener::on_event(event);
    }
  };
  start({{"", "</think>on and on"}});
  const auto thrower = std::make_shared<Thrower>();
  scheduler_->submit(user("x"), thrower);
  EXPECT_TRUE(thrower->wait());
  EXPECT_EQ(thrower->events().back().error.status, 503);
  EXPECT_EQ(ask(user("y"))->text(Kind::content), "on and on");
}

TEST_F(SchedulerTest, ShutDownEndsEverythingWithAnEvent) {
  start({{"", "</think>on and on ", true}}, {}, {.per_pass = 1ms});
  const auto running = submit(user("x"));
  EXPECT_TRUE(running->wait_for(Kind::content));
  scheduler_->refuse();
  const auto refused = submit(user("y"));
  EXPECT_EQ(refused->events().back().error.status, 503);
  EXPECT_FALSE(scheduler_->wait_idle(20ms));
  scheduler_->stop();
  EXPECT_TRUE(running->wait());
  EXPECT_EQ(running->events().back().error.status, 503);
}

TEST(PromptBorders, FirstAndLastTurnAndLastToken) {
  EXPECT_EQ(prompt_borders(std::vector<Token>{1, 7, 5, 7, 6, 7, 8, 9}, 7), (std::vector<size_t>{1, 5, 7}));
  EXPECT_EQ(prompt_borders(std::vector<Token>{1, 7}, 7), (std::vector<size_t>{1, 1, 1}));
  EXPECT_EQ(prompt_borders(std::vector<Token>{1, 2, 3}, 7), (std::vector<size_t>{2}));
}

TEST(PrefillEnd, StopsAtBordersAndKeepsPiecesLong) {
  EXPECT_EQ(prefill_end(0, 1, 100, {}), 1u);
  EXPECT_EQ(prefill_end(0, 50, 100, {}), 49u);
  EXPECT_EQ(prefill_end(49, 50, 100, {}), 50u);
  EXPECT_EQ(prefill_end(0, 1000, 100, {}), 100u);
  EXPECT_EQ(prefill_end(0, 110, 100, {}), 109u);  // no rest of 9
  EXPECT_EQ(prefill_end(0, 1000, 1, {}), 17u);
  const std::vector<size_t> borders{40, 200, 990, 999};
  EXPECT_EQ(prefill_end(0, 1000, 4096, borders), 40u);
  EXPECT_EQ(prefill_end(30, 1000, 4096, borders), 200u);  // no piece of 10
  EXPECT_EQ(prefill_end(200, 1000, 4096, borders), 999u);
  EXPECT_EQ(prefill_end(200, 1000, 300, borders), 500u);
}

}  // namespace
}  // namespace ds4::server
