#include <gtest/gtest.h>

#include "server/api/error_body.hpp"
#include "server/api/event_stream.hpp"
#include "server/api/openai_chat.hpp"
#include "server/api/test_api.hpp"
#include "server/api/test_openai.hpp"

namespace ds4::server::api {
namespace {

using Event = GenerationEvent::Kind;

OpenAiReplyOptions options_for(bool stream) {
  return openai_options("chatcmpl-1", stream);
}

std::shared_ptr<FakeExchange> play(const OpenAiReplyOptions& options,
                                   const std::vector<GenerationEvent>& events) {
  return play_on([&](const auto& exchange) { return make_chat_reply(options, exchange); }, events);
}

std::string chunk(const std::string& choices, const std::string& rest = "") {
  return openai_chunk("chatcmpl-1", "chat.completion.chunk", choices, rest);
}
std::string delta(const std::string& json, size_t index = 0) {
  return chunk("{\"index\":" + std::to_string(index) + ",\"delta\":" + json + ",\"finish_reason\":null}");
}
std::string finish(const std::string& reason, size_t index = 0) {
  return chunk("{\"index\":" + std::to_string(index) + ",\"delta\":{},\"finish_reason\":\"" + reason + "\"}");
}
std::string tool_delta(const std::string& json) {
  return delta("{\"tool_calls\":[" + json + "]}");
}

const std::vector<GenerationEvent> kGreeting = {started_event(),
                                                text_event(Event::progress, ""),
                                                text_event(Event::reasoning, "User greets."),
                                                text_event(Event::content, "Hi!"),
                                                finished_event(FinishReason::stop),
                                                done_event({5, 0, 7, 3})};

std::vector<GenerationEvent> tool_call_events() {
  std::vector<GenerationEvent> events = {started_event(),
                                         call_event("call_0123456789abcdef0123456789abcdef", "bash")};
  for (const char* piece : {"{", "\"command\":\"", "ls -la", "\"", ",\"timeout\":", "10", "}"}) {
    events.push_back(text_event(Event::call_arguments, piece));
  }
  events.push_back(text_event(Event::call_end, R"({"command":"ls -la","timeout":10})"));
  events.push_back(finished_event(FinishReason::tool_calls));
  events.push_back(done_event({5, 0, 7, 3}));
  return events;
}

TEST(ChatStream, Progress) {
  const auto exchange =
      play(options_for(true), {progress_event(0, 0), started_event(), progress_event(512, 2048)});
  const std::string nothing = R"({"index":0,"delta":{},"finish_reason":null})";
  EXPECT_EQ(exchange->response.body,
            delta(R"({"role":"assistant"})") + chunk(nothing, R"(,"prefill":{"done":512,"total":2048})"));
  EXPECT_EQ(play(options_for(false), {started_event(), progress_event(512, 2048)})->response.body, "");
}

TEST(ChatStream, ReasoningAndAnswer) {
  OpenAiReplyOptions options = options_for(true);
  options.include_usage = true;
  const auto exchange = play(options, kGreeting);
  EXPECT_EQ(exchange->response.body, delta(R"({"role":"assistant"})") +
                                         delta(R"({"reasoning_content":"User greets."})") +
                                         delta(R"({"content":"Hi!"})") + finish("stop") +
                                         chunk("", std::string(",") + kUsage) + kDone);
  EXPECT_EQ(exchange->response.status, 200);
  EXPECT_EQ(exchange->response.content_type, "text/event-stream");
  EXPECT_EQ(exchange->response.headers, (http::HeaderList{{"x-ds4-thinking", "high"}}));
  EXPECT_EQ(exchange->keepalive(), delta("{}"));
  EXPECT_EQ(exchange->keepalive_interval, kKeepaliveInterval);
  EXPECT_EQ(exchange->streams, 1);
  EXPECT_EQ(exchange->ends, 1);
  EXPECT_EQ(exchange->responses, 0);
}

TEST(ChatStream, BeginsWithTheFirstEvent) {
  const auto exchange = play(options_for(true), {started_event()});
  EXPECT_EQ(exchange->streams, 1);
  EXPECT_EQ(exchange->response.body, delta(R"({"role":"assistant"})"));
}

TEST(ChatStream, ToolCall) {
  const auto exchange = play(options_for(true), tool_call_events());
  EXPECT_EQ(exchange->response.body,
            delta(R"({"role":"assistant"})") +
                tool_delta(
                    R"({"index":0,"id":"call_0123456789abcdef0123456789abcdef","type":"function","function":)"
                    R"({"name":"bash","arguments":""}})") +
                tool_delta(R"({"index":0,"function":{"arguments":"{"}})") +
                tool_delta(R"({"index":0,"function":{"arguments":"\"command\":\""}})") +
                tool_delta(R"({"index":0,"function":{"arguments":"ls -la"}})") +
                tool_delta(R"({"index":0,"function":{"arguments":"\""}})") +
                tool_delta(R"({"index":0,"function":{"arguments":",\"timeout\":"}})") +
                tool_delta(R"({"index":0,"function":{"arguments":"10"}})") +
                tool_delta(R"({"index":0,"function":{"arguments":"}"}})") + finish("tool_calls") + kDone);
}

TEST(ChatStream, ArgumentsThatCameInOnePieceAreSentAtTheEnd) {
  const auto exchange =
      play(options_for(true), {started_event(), call_event("call_1", "a"), text_event(Event::call_end, "{}"),
                               call_event("call_2", "b", 1), text_event(Event::call_end, "{}", 0, 1)});
  EXPECT_TRUE(exchange->response.body.ends_with(
      tool_delta(R"({"index":0,"function":{"arguments":"{}"}})") +
      tool_delta(R"({"index":1,"id":"call_2","type":"function","function":{"name":"b","arguments":""}})") +
      tool_delta(R"({"index":1,"function":{"arguments":"{}"}})")));
}

TEST(ChatStream, SeveralChoices) {
  OpenAiReplyOptions options = options_for(true);
  options.choices = 2;
  const auto exchange =
      play(options,
           {started_event(), text_event(Event::content, "a", 0), text_event(Event::content, "b", 1),
            finished_event(FinishReason::length, 1), finished_event(FinishReason::stop, 0), done_event({})});
  EXPECT_EQ(exchange->response.body, delta(R"({"role":"assistant"})", 0) +
                                         delta(R"({"role":"assistant"})", 1) +
                                         delta(R"({"content":"a"})", 0) + delta(R"({"content":"b"})", 1) +
                                         finish("length", 1) + finish("stop", 0) + kDone);
}

TEST(ChatStream, LogProbabilities) {
  GenerationEvent reasoning = text_event(Event::reasoning, "x");
  reasoning.scores = {{"x", 0.0F, {}}};
  GenerationEvent content = text_event(Event::content, "\xc3\xa9");
  content.scores = {{"\xc3", -0.5F, {{"\xc3", -0.5F}, {"a", -std::numeric_limits<float>::infinity()}}},
                    {"\xa9", -0.25F, {}}};
  const auto exchange = play(options_for(true), {reasoning, content});
  EXPECT_EQ(
      exchange->response.body,
      delta(R"({"role":"assistant"})") +
          chunk(
              R"({"index":0,"delta":{"reasoning_content":"x"},"logprobs":{"reasoning_content":[{"token":"x","logprob":0,)"
              R"("bytes":[120],"top_logprobs":[]}]},"finish_reason":null})") +
          chunk("{\"index\":0,\"delta\":{\"content\":\"\xc3\xa9\"},\"logprobs\":{\"content\":[{\"token\":"
                "\"\xEF\xBF\xBD\","
                "\"logprob\":-0.5,\"bytes\":[195],\"top_logprobs\":[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-"
                "0.5,\"bytes\":"
                "[195]},{\"token\":\"a\",\"logprob\":-9999,\"bytes\":[97]}]},{\"token\":\"\xEF\xBF\xBD\","
                "\"logprob\":-0.25,"
                "\"bytes\":[169],\"top_logprobs\":[]}]},\"finish_reason\":null}"));
}

TEST(ChatStream, StopStringIsReported) {
  GenerationEvent finished = finished_event(FinishReason::stop);
  finished.stop_sequence = "END";
  const auto exchange = play(options_for(true), {started_event(), finished});
  EXPECT_TRUE(exchange->response.body.ends_with(
      chunk(R"({"index":0,"delta":{},"finish_reason":"stop","stop_reason":"END"})")));
}

TEST(ChatStream, FailureBeforeTheFirstByteIsAPlainError) {
  const auto exchange =
      play(options_for(true), {failed_event(context_overflow(9, 8, "prompt")), started_event()});
  EXPECT_EQ(exchange->streams, 0);
  EXPECT_EQ(exchange->responses, 1);
  EXPECT_EQ(exchange->response.status, 400);
  EXPECT_EQ(exchange->response.body, openai_error(context_overflow(9, 8, "messages")) + "\n");
}

TEST(ChatStream, FailureLaterIsAnErrorEventAndTheEnd) {
  RequestError error;
  error.status = 500;
  error.type = "server_error";
  error.message = "device lost";
  const auto exchange = play(options_for(true), {started_event(), failed_event(error), done_event({})});
  EXPECT_EQ(
      exchange->response.body,
      delta(R"({"role":"assistant"})") +
          "event: error\ndata: {\"error\":{\"message\":\"device lost\",\"type\":\"server_error\"}}\n\n");
  EXPECT_EQ(exchange->ends, 1);
}

TEST(ChatStream, AChoiceThatBrokeOffIsAnErrorEvent) {
  const auto exchange =
      play(options_for(true), {started_event(), finished_event(FinishReason::error), done_event({})});
  EXPECT_EQ(exchange->response.body, delta(R"({"role":"assistant"})") +
                                         "event: error\ndata: {\"error\":{\"message\":\"generation "
                                         "failed\",\"type\":\"server_error\"}}\n\n" +
                                         kDone);
}

std::string complete(const std::string& message, const std::string& finish_reason,
                     const std::string& usage = kUsage) {
  return "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1770000000,\"model\":\"deepseek-"
         "v4-flash\","
         "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\"," +
         message + "},\"finish_reason\":\"" + finish_reason + "\"}]," + usage + "}\n";
}

TEST(ChatReply, ReasoningAndAnswer) {
  const auto exchange = play(options_for(false), kGreeting);
  EXPECT_EQ(exchange->response.body,
            complete(R"("content":"Hi!","reasoning_content":"User greets.")", "stop"));
  EXPECT_EQ(exchange->response.status, 200);
  EXPECT_EQ(exchange->response.content_type, "application/json");
  EXPECT_EQ(exchange->response.headers, (http::HeaderList{{"x-ds4-thinking", "high"}}));
  EXPECT_EQ(exchange->streams, 0);
}

TEST(ChatReply, ToolCallsWithoutDroppedOnes) {
  std::vector<GenerationEvent> events = tool_call_events();
  events.insert(events.end() - 2,
                {call_event("call_2", "cut", 1), text_event(Event::call_arguments, "{", 0, 1),
                 text_event(Event::call_dropped, "", 0, 1)});
  const auto exchange = play(options_for(false), events);
  EXPECT_EQ(
      exchange->response.body,
      complete(
          R"("content":"","tool_calls":[{"id":"call_0123456789abcdef0123456789abcdef","type":"function",)"
          R"("function":{"name":"bash","arguments":"{\"command\":\"ls -la\",\"timeout\":10}"}}])",
          "tool_calls"));
}

TEST(ChatReply, ReasoningIsLeftOutOnRequest) {
  OpenAiReplyOptions options = options_for(false);
  options.hide_reasoning = true;
  EXPECT_EQ(play(options, kGreeting)->response.body, complete(R"("content":"Hi!")", "stop"));
  options = options_for(true);
  options.hide_reasoning = true;
  EXPECT_EQ(play(options, kGreeting)->response.body,
            delta(R"({"role":"assistant"})") + delta(R"({"content":"Hi!"})") + finish("stop") + kDone);
}

TEST(ChatReply, ContentIsAStringEvenIfNothingWasSaid) {
  const auto exchange = play(
      options_for(false), {started_event(), finished_event(FinishReason::length), done_event({5, 0, 7, 3})});
  EXPECT_EQ(exchange->response.body, complete(R"("content":"")", "length"));
}

TEST(ChatReply, SeveralChoicesAndLogProbabilities) {
  OpenAiReplyOptions options = options_for(false);
  options.choices = 2;
  GenerationEvent scored = text_event(Event::content, "b", 1);
  scored.scores = {{"b", -1.0F, {{"b", -1.0F}}}};
  const auto exchange = play(options, {started_event(), scored, text_event(Event::content, "a", 0),
                                       finished_event(FinishReason::stop, 1),
                                       finished_event(FinishReason::stop, 0), done_event({4, 3, 2, 0})});
  EXPECT_EQ(
      exchange->response.body,
      R"({"id":"chatcmpl-1","object":"chat.completion","created":1770000000,"model":"deepseek-v4-flash","choices":[)"
      R"({"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"},)"
      R"({"index":1,"message":{"role":"assistant","content":"b"},"logprobs":{"content":[{"token":"b","logprob":-1,)"
      R"("bytes":[98],"top_logprobs":[{"token":"b","logprob":-1,"bytes":[98]}]}]},"finish_reason":"stop"}],)"
      R"("usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":3,)"
      R"("cache_write_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}})"
      "\n");
}

TEST(ChatReply, Failures) {
  RequestError error;
  error.status = 503;
  error.type = "server_error";
  error.message = "server shutting down";
  auto exchange = play(options_for(false), {started_event(), failed_event(error)});
  EXPECT_EQ(exchange->response.status, 503);
  EXPECT_EQ(exchange->response.body, openai_error(error) + "\n");
  exchange = play(options_for(false), {started_event(), text_event(Event::content, "half"),
                                       finished_event(FinishReason::error), done_event({})});
  EXPECT_EQ(exchange->responses, 1);
  EXPECT_EQ(exchange->response.status, 500);
  EXPECT_EQ(exchange->response.body, R"({"error":{"message":"generation failed","type":"server_error"}})"
                                     "\n");
}

TEST(ChatReply, KnowsThatTheClientLeft) {
  auto exchange = std::make_shared<FakeExchange>();
  const auto reply = make_chat_reply(options_for(false), exchange);
  EXPECT_FALSE(reply->gone());
  exchange->left = true;
  EXPECT_TRUE(reply->gone());
}

}  // namespace
}  // namespace ds4::server::api
