#include "server/scheduler.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "server/test_scheduler.hpp"

namespace ds4::server {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Kind = GenerationEvent::Kind;

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

// A request with as many answers as a pass has rows waits neither for all others to end nor for ever.
// At a limit the text is cut short, and the JSON is whole all the same.
// A call with half a value would be another call.
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
  EXPECT_LT(last_record().answers.front().text.size(), 1000u);
  request.max_tokens = 3;
  const auto again = ask(request);
  const Usage usage = again->find(Kind::done).usage;
  EXPECT_EQ(usage.cached_tokens, usage.prompt_tokens);
}

// What a prompt needs of one that is being answered counts as well, although that is no idle conversation.
TEST_F(SchedulerTest, APromptGoesOnFromOneThatIsBeingAnswered) {
  start({{"", "</think>" + std::string(400, 's')}}, {}, {.per_pass = 2ms});
  std::string words;
  for (int i = 0; i < 500; ++i) words += fmt::format("w{} ", i);
  GenerationRequest request = user("one");
  request.messages.insert(request.messages.begin(), ChatMessage{Role::system, words, {}, {}, {}, {}});
  const auto first = submit(request);
  EXPECT_TRUE(first->wait_for(Kind::content));
  request.messages.back().content = "two";
  request.max_tokens = 3;
  const auto second = submit(request);
  EXPECT_TRUE(second->wait());
  EXPECT_LT(first->text(Kind::content).size(), 400u) << "the first one was over too soon";
  const Usage usage = second->find(Kind::done).usage;
  EXPECT_GT(usage.cached_tokens + 32, usage.prompt_tokens);
  first->leave();
}

// Agents start others with the same instructions at once: they are computed once.
TEST_F(SchedulerTest, RequestsThatComeTogetherShareTheirBeginning) {
  start({{"", "</think>Fine."}}, {}, {.per_prompt_token = 100us});
  std::string words;
  for (int i = 0; i < 1000; ++i) words += fmt::format("w{} ", i);
  GenerationRequest request = user("warm up the clock");
  ask(request);
  request.messages.insert(request.messages.begin(), ChatMessage{Role::system, words, {}, {}, {}, {}});
  const uint64_t before = counters_.prefill_tokens;
  std::vector<std::shared_ptr<Listener>> all;
  for (int i = 0; i < 4; ++i) {
    request.messages.back().content = fmt::format("task {}", i);
    all.push_back(submit(request));
  }
  size_t prompt = 0, cached = 0;
  for (const auto& listener : all) {
    ASSERT_TRUE(listener->wait());
    EXPECT_EQ(listener->text(Kind::content), "Fine.");
    const Usage usage = listener->find(Kind::done).usage;
    prompt = usage.prompt_tokens;
    cached += usage.cached_tokens;
  }
  EXPECT_GT(cached, 3 * (prompt - 40));
  EXPECT_LT(counters_.prefill_tokens - before, prompt + 200);
}

// Also who follows by way of another one, or came when the first had computed a part.
TEST_F(SchedulerTest, WhoFollowsHearsHowFarItIs) {
  start({{"", "</think>Fine."}}, {}, {.per_prompt_token = 1ms});
  std::string words;
  for (int i = 0; i < 1000; ++i) words += fmt::format("w{} ", i);
  const auto first = submit(user(words + "one"));
  EXPECT_TRUE(first->wait_for(Kind::progress));
  const auto second = submit(user(words + "two"));
  EXPECT_TRUE(second->wait_for(Kind::progress));
  for (const char* end : {"three", "two, but longer"}) {
    const auto other = submit(user(words + end));
    EXPECT_TRUE(other->wait_for(Kind::progress));
    const GenerationEvent progress = other->find(Kind::progress);
    EXPECT_GT(progress.total, 0u) << end;
    EXPECT_LT(progress.done + 100, progress.total) << end;
  }
  first->leave();
  second->leave();
}

TEST_F(SchedulerTest, WhoFollowsGoesOnWithoutWhoLeaves) {
  start({{"", "</think>Fine."}}, {}, {.per_prompt_token = 200us});
  std::string words;
  for (int i = 0; i < 1000; ++i) words += fmt::format("w{} ", i);
  const auto first = submit(user(words + "one"));
  const auto second = submit(user(words + "two"));
  EXPECT_TRUE(first->wait_for(Kind::started));
  first->leave();
  EXPECT_TRUE(second->wait());
  EXPECT_EQ(second->text(Kind::content), "Fine.");
  const auto third = submit(user(words + "three"));
  scheduler_->stop();
  EXPECT_TRUE(third->wait());
}

TEST_F(SchedulerTest, AClientMayLeaveInTheMomentInWhichItIsTakenUp) {
  class Hasty : public EventSink {
   public:
    void on_event(const GenerationEvent&) override {}
    bool gone() const override { return ++asked_ > 1; }

   private:
    mutable std::atomic<int> asked_ = 0;
  };
  start({{"", "</think>Fine."}});
  for (int i = 0; i < 3; ++i) {
    scheduler_->submit(user("hello"), std::make_shared<Hasty>());
    EXPECT_TRUE(scheduler_->wait_idle(std::chrono::seconds(10)));
  }
  EXPECT_EQ(ask(user("hello"))->text(Kind::content), "Fine.");
}

// The retry is there before anybody has noticed that its first try was given up.
TEST_F(SchedulerTest, AClientThatLeavesAndAsksAgainAtOnceFindsItsPrefix) {
  start({{"", "</think>" + std::string(2000, 's')}}, {}, {.per_pass = 20ms});
  GenerationRequest request = user("hello");
  const auto first = submit(request);
  EXPECT_TRUE(first->wait_for(Kind::content));
  first->leave();
  request.max_tokens = 3;
  const Usage usage = ask(request)->find(Kind::done).usage;
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
  std::vector<Token> tokens(100, 5);
  tokens[20] = tokens[60] = tokens[70] = 7;
  EXPECT_EQ(prompt_borders(tokens, 7), (std::vector<size_t>{20, 70, 99}));
  tokens[95] = 7;  // too near to the end to stop there
  EXPECT_EQ(prompt_borders(tokens, 7), (std::vector<size_t>{20, 82, 99}));
  EXPECT_EQ(prompt_borders(std::vector<Token>{1, 7}, 7), (std::vector<size_t>{0, 0, 1}));
  EXPECT_EQ(prompt_borders(std::vector<Token>{1, 2, 3}, 7), (std::vector<size_t>{2}));
}

TEST(SavePoints, TheSharedBeginningTheIntervalAndTheEndOfLongPrompts) {
  const SpecialTokens special{.bos = 0, .eos = 1, .user = 7, .assistant = 8};
  std::vector<Token> tokens(25000, 5);
  tokens[600] = 7;
  tokens.back() = 8;
  const auto positions = [&](size_t cached, const store::SavePolicy& policy = {},
                             bool forgets_reasoning = false) {
    std::vector<size_t> found;
    for (const SavePoint& point : save_points(policy, special, tokens, cached, forgets_reasoning))
      found.push_back(point.position);
    return found;
  };
  EXPECT_EQ(positions(0), (std::vector<size_t>{600, 10240, 20480, 24999}));
  EXPECT_TRUE(save_points({}, special, tokens, 0, false)[0].how.anchor);
  EXPECT_EQ(positions(600), (std::vector<size_t>{10240, 20480, 24999}));
  EXPECT_EQ(positions(24500), (std::vector<size_t>{}));
  EXPECT_EQ(positions(24500, {}, true), (std::vector<size_t>{24999})) << "where the next prompt differs";
  EXPECT_EQ(positions(24999, {}, true), (std::vector<size_t>{}));
  EXPECT_EQ(positions(0, {.cold_max_tokens = 0, .continued_interval_tokens = 0}),
            (std::vector<size_t>{24999}));
  EXPECT_EQ(positions(0, {.min_tokens = 700}), (std::vector<size_t>{10240, 20480, 24576, 24999}));
}

TEST(PrefillEnd, StopsAtBordersAndKeepsPiecesLong) {
  EXPECT_EQ(slice_tokens(0, 4096), 32u);
  EXPECT_EQ(slice_tokens(500.5, 4096), 500u);
  EXPECT_EQ(slice_tokens(1e30, 4096), 4096u);
  EXPECT_EQ(slice_tokens(0, 8), 8u);  // and not more than a chunk
  EXPECT_EQ(slice_tokens(500, 8), 8u);
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
