// Answers under way: several at once, held to grammars, growing.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "server/test_scheduler.hpp"

namespace ds4::server {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Kind = GenerationEvent::Kind;

class DecodeTest : public SchedulerTest {};

TEST_F(DecodeTest, SeveralAnswersAndSeveralRequestsAtOnce) {
  start({{"three", "</think>AAAA"}, {"one", "</think>BBBB"}}, {}, {.per_pass = 2ms});
  GenerationRequest request = user("three");
  request.choices = 3;
  const auto three = submit(request), one = submit(user("one"));
  EXPECT_TRUE(three->wait() && one->wait());
  for (size_t choice = 0; choice < 3; ++choice) EXPECT_EQ(three->text(Kind::content, choice), "AAAA");
  EXPECT_EQ(one->text(Kind::content), "BBBB");
  EXPECT_GT(counters_.decode_rows, counters_.decode_passes);
}

TEST_F(DecodeTest, ManyAnswersAreTakenUpBesideOthers) {
  start({{"many", "</think>AAAA"}, {"", "</think>on and on ", true}}, {}, {.per_pass = 1ms});
  GenerationRequest endless = user("x");
  endless.max_tokens = 2000;
  const auto first = submit(endless);
  EXPECT_TRUE(first->wait_for(Kind::content));
  GenerationRequest request = user("many");
  request.choices = 16;
  const auto many = submit(request);
  EXPECT_TRUE(many->wait());
  for (size_t choice = 0; choice < 16; ++choice) EXPECT_EQ(many->text(Kind::content, choice), "AAAA");
  EXPECT_NE(first->events().back().kind, Kind::done);
  EXPECT_TRUE(first->wait());
  EXPECT_EQ(first->find(Kind::done).usage.completion_tokens, 2000u);
}

TEST_F(DecodeTest, AnswersTakeTheMemoryOfIdleConversations) {
  start({{"grow", "</think>on and on ", true}, {"", "</think>Fine."}}, {},
        {.memory_tokens = 1000, .decoding_takes_memory = true});
  std::string words;
  for (int i = 0; i < 100; ++i) words += fmt::format("w{} ", i);
  for (int i = 0; i < 2; ++i) ask(user(fmt::format("number {} ", i) + words));
  GenerationRequest request = user("grow");
  request.max_tokens = 800;
  const auto told = ask(request);
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::length)
      << told->find(Kind::finished).error.message;
  std::string expected;
  while (expected.size() < told->text(Kind::content).size()) expected += "on and on </think>";
  EXPECT_TRUE(expected.starts_with(told->text(Kind::content)));
  EXPECT_THAT(metrics_.render(), HasSubstr("ds4_session_evictions_total 2"));
  // Nobody left to make room.
  request.max_tokens = 1200;
  const auto failed = ask(request);
  EXPECT_EQ(failed->find(Kind::finished).error.status, 503);
}

TEST_F(DecodeTest, GrowingAnswersKeepToTheByteBudget) {
  start({{"grow", "</think>on and on ", true}, {"", "</think>Fine."}}, {.pool = {.bytes = 40000}});
  ask(user("one"));
  ask(user("two"));
  GenerationRequest request = user("grow");
  request.max_tokens = 500;
  std::string seen;
  class Watcher : public Listener {
   public:
    explicit Watcher(std::function<void()> look) : look_(std::move(look)) {}
    void on_event(const GenerationEvent& event) override {
      if (event.kind == Kind::finished) look_();
      Listener::on_event(event);
    }

   private:
    std::function<void()> look_;
  };
  const auto watcher = std::make_shared<Watcher>([&] { seen = metrics_.render(); });
  scheduler_->submit(request, watcher);
  EXPECT_TRUE(watcher->wait());
  EXPECT_THAT(seen, HasSubstr("ds4_session_evictions_total 2"));  // before the answer was done
}

TEST_F(DecodeTest, AnEndBehindAPromiseIsRefusedOnce) {
  const std::string end = "<｜end▁of▁sentence｜>";
  const std::string block = std::string(kCall).substr(std::string(kCall).find("\n\n"));
  start({{"slip", "Hm.</think>I see. Let me look at it." + end + block},
         {"twice", "Hm.</think>Let me look at it." + end + " Let me check it." + end + block},
         {"", "Hm.</think>All is done." + end + block}});
  const auto told = ask(with_tool("slip"));
  EXPECT_THAT(told->text(Kind::content), ::testing::StartsWith("I see. Let me look at it."));
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::tool_calls);
  EXPECT_EQ(told->find(Kind::call_begin).text, "look");
  EXPECT_THAT(metrics_.render(), HasSubstr("ds4_promised_actions_total{called=\"yes\"} 1"));
  const auto twice = ask(with_tool("twice"));
  EXPECT_EQ(twice->find(Kind::finished).finish, FinishReason::stop);
  EXPECT_THAT(metrics_.render(), HasSubstr("ds4_promised_actions_total{called=\"no\"} 1"));
  const auto done = ask(with_tool("done"));
  EXPECT_EQ(done->text(Kind::content), "All is done.");
  // Without tools nothing can be called.
  EXPECT_EQ(ask(user("slip"))->text(Kind::content), "I see. Let me look at it.");
  start({{"", "Hm.</think>Let me look at it." + end + block}}, {.hold_to_promises = false});
  EXPECT_EQ(ask(with_tool("slip"))->find(Kind::finished).finish, FinishReason::stop);
}

TEST_F(DecodeTest, RequiredCallsAreForced) {
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

TEST_F(DecodeTest, JsonAnswers) {
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

// Whatever the token ends with that ends the call.
TEST_F(DecodeTest, OneCallIfNoMoreAreWanted) {
  std::string two = kCall;
  const size_t begin = two.find("<｜DSML｜invoke"), end = two.find("</｜DSML｜tool_calls>");
  const std::string one = two.substr(begin, end - begin);
  two.insert(end, one + one);
  const std::string plain =
      "Let me look.</think>I will.\n\n<tool_calls>\n<invoke name=\"look\">\n"
      "<parameter name=\"path\" string=\"true\">a b</parameter>\n</invoke>\n"
      "<invoke name=\"look\">\n</invoke>\n</tool_calls>";
  start({{"plain", plain}, {"", two}});
  const auto calls = [](const Listener& told) {
    size_t count = 0;
    for (const GenerationEvent& event : told.events()) count += event.kind == Kind::call_begin ? 1 : 0;
    return count;
  };
  EXPECT_EQ(calls(*ask(with_tool("look"))), 3u);
  for (const std::string text : {"look", "plain"}) {
    GenerationRequest request = with_tool(text);
    request.parallel_tool_calls = false;
    const auto told = ask(request);
    EXPECT_EQ(calls(*told), 1u) << text;
    EXPECT_EQ(told->find(Kind::call_end).text, R"({"path":"a b"})");
    EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::tool_calls);
    EXPECT_EQ(told->text(Kind::content), "I will.");
    if (text == "plain") continue;
    EXPECT_THAT(last_record().answers.front().text,
                ::testing::EndsWith("</｜DSML｜invoke>\n</｜DSML｜tool_calls>"));
    // What comes back is what was sampled.
    const Usage usage = told->find(Kind::done).usage;
    ChatMessage reply;
    reply.role = Role::assistant;
    reply.content = "I will.";
    reply.tool_calls = {{told->find(Kind::call_begin).id, "look", R"({"path":"a b"})"}};
    ChatMessage result;
    result.role = Role::tool;
    result.content = "x";
    result.tool_call_id = reply.tool_calls[0].id;
    request.messages.push_back(reply);
    request.messages.push_back(result);
    const auto next = ask(request)->find(Kind::started).usage;
    EXPECT_EQ(next.cached_tokens, usage.prompt_tokens + usage.completion_tokens);
    // The end of the block may lie behind the limit.
    GenerationRequest tight = with_tool("look");
    tight.parallel_tool_calls = false;
    tight.max_tokens = usage.completion_tokens - 2;
    EXPECT_EQ(ask(tight)->find(Kind::finished).finish, FinishReason::tool_calls);
  }
}

// What the model begins with decides; either is then held to its grammar.
TEST_F(DecodeTest, ToolsBesideAFormatCanBeCalled) {
  const std::string block = std::string(kCall).substr(std::string(kCall).find("\n\n"));
  const std::string quoted = "<tool_calls> <invoke name=";
  start({{"call", "Hm.</think>" + block},
         {"answer", "Hm.</think>{\"a\":\"" + quoted + "\"}"},
         {"", "Hm.</think>I would rather talk."}});
  GenerationRequest request = with_tool("call");
  request.format = {.kind = ResponseFormat::Kind::json_schema,
                    .schema = R"({"type":"object","properties":{"a":{"type":"string","maxLength":60}},
                                  "required":["a"],"additionalProperties":false})"};
  request.max_tokens = 400;
  const auto told = ask(request);
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::tool_calls);
  EXPECT_EQ(told->find(Kind::call_end).text, R"({"path":"a b"})");
  EXPECT_EQ(told->text(Kind::content), "");
  for (const std::string text : {"answer", "talk"}) {
    request.messages.back().content = text;
    const auto answered = ask(request);
    EXPECT_EQ(answered->find(Kind::finished).finish, FinishReason::stop) << text;
    EXPECT_THAT(answered->text(Kind::content), HasSubstr("\"a\":\"")) << text;
    EXPECT_THAT(answered->text(Kind::content), ::testing::EndsWith("\"}")) << text;
    if (text == "answer") {
      EXPECT_THAT(answered->text(Kind::content), HasSubstr(quoted));
    }
  }
  // A schema of a tool that cannot be held to is none of the format's business.
  request.messages.back().content = "call";
  request.tools[0].parameters = R"({"type":"object","not":{}})";
  EXPECT_EQ(ask(request)->find(Kind::call_end).text, R"({"path":"a b"})");
  request.tool_choice = ToolChoice::none;
  EXPECT_THAT(ask(request)->text(Kind::content), ::testing::StartsWith("{"));
}

TEST_F(DecodeTest, JsonIsClosedBeforeTheLimit) {
  start({{"", "hm</think>{\"a\":\"" + std::string(3000, 'x') + " y"}});
  GenerationRequest request = user("x");
  request.format = {.kind = ResponseFormat::Kind::json_schema,
                    .schema = R"({"type":"object","properties":{"a":{"type":"string"},
                                  "b":{"type":"array","items":{"type":"integer"},"minItems":2}},
                                  "required":["a","b"],"additionalProperties":false})",
                    .strict = true};
  for (const size_t limit : {30, 50, 200}) {
    request.max_tokens = limit;
    const auto told = ask(request);
    EXPECT_THAT(told->text(Kind::content),
                ::testing::MatchesRegex("\\{\"a\":\"x+\",\"b\":\\[[0-9],[0-9]\\]\\}"));
    EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::length);
    const size_t used = told->find(Kind::done).usage.completion_tokens;
    EXPECT_LE(used, limit);
    EXPECT_GE(used + 10, limit) << "closed too early";
  }
  EXPECT_THAT(metrics_.render(), HasSubstr("ds4_formats_closed_total{why=\"limit\"} 3"));
}

TEST_F(DecodeTest, JsonThatGoesRoundInCirclesIsClosed) {
  start({{"", "{\"a\":\"on and on", false, true}});
  GenerationRequest request = user("x");
  request.thinking.mode = ThinkMode::none;
  request.format = {.kind = ResponseFormat::Kind::json_schema,
                    .schema = R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})",
                    .strict = true};
  const auto told = ask(request);
  EXPECT_THAT(told->text(Kind::content), ::testing::EndsWith("\"}"));
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::stop);
  EXPECT_LT(told->find(Kind::done).usage.completion_tokens, 1200u);
  EXPECT_THAT(metrics_.render(), HasSubstr("ds4_formats_closed_total{why=\"loop\"} 1"));
}

TEST_F(DecodeTest, RequiredCallsAreNeverClosedEarly) {
  start({{"",
          "hm</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n<｜DSML｜parameter "
          "name=\"path\" "
          "string=\"true\">" +
              std::string(3000, 'x')}});
  GenerationRequest request = with_tool("look");
  request.tool_choice = ToolChoice::required;
  request.max_tokens = 100;
  const auto told = ask(request);
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::length);
  EXPECT_THAT(told->events(),
              ::testing::Not(::testing::Contains(::testing::Field(&GenerationEvent::kind, Kind::call_end))));
}

TEST_F(DecodeTest, BlockWithoutReadableCallsIsNoCall) {
  std::string broken = kCall;
  broken.replace(broken.find("string=\"true\""), 13, "string=\"false\"");
  start({{"", broken}});
  const auto told = ask(with_tool("look"));
  EXPECT_EQ(told->text(Kind::content), "I will.");
  EXPECT_EQ(told->find(Kind::finished).finish, FinishReason::stop);
}

TEST_F(DecodeTest, Logprobs) {
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

TEST_F(DecodeTest, LogprobsOfCompletionsAreThoseOfAllTheText) {
  start({{"", "why</think>ab"}});
  GenerationRequest request;
  request.kind = GenerationRequest::Kind::completion;
  request.prompt = "x";
  request.logprobs = true;
  const auto told = ask(request);
  std::string bytes;
  for (const GenerationEvent& event : told->events()) {
    for (const ScoredToken& score : event.scores) bytes += score.bytes;
  }
  EXPECT_EQ(bytes, "why</think>ab");
  EXPECT_EQ(bytes, told->text(Kind::reasoning) + told->text(Kind::content));
}

}  // namespace
}  // namespace ds4::server
