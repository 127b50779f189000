#include "server/api/openai_completions.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/error_body.hpp"
#include "server/api/test_api.hpp"
#include "server/api/test_openai.hpp"

namespace ds4::server::api {
namespace {

using Event = GenerationEvent::Kind;

OpenAiReplyOptions options_for(bool stream) {
  return openai_options("cmpl-2", stream);
}

std::shared_ptr<FakeExchange> play(const OpenAiReplyOptions& options,
                                   const std::vector<GenerationEvent>& events) {
  return play_on([&](const auto& exchange) { return make_completion_reply(options, exchange); }, events);
}

std::string chunk(const std::string& choices, const std::string& rest = "") {
  return openai_chunk("cmpl-2", "text_completion", choices, rest);
}

GenerationEvent scored_event(size_t choice = 0) {
  GenerationEvent event = text_event(Event::content, "\xc3\xa9z", choice);
  event.scores = {{"\xc3", -0.5F, {{"\xc3", -0.5F}, {"a", -2.0F}}}, {"\xa9", -0.25F, {}}, {"z", 0.0F, {}}};
  return event;
}

TEST(CompletionStream, TextAndUsage) {
  OpenAiReplyOptions options = options_for(true);
  options.include_usage = true;
  const auto exchange = play(options, {started_event(), text_event(Event::content, "Hi"),
                                       finished_event(FinishReason::stop), done_event({5, 0, 7, 3})});
  EXPECT_EQ(exchange->response.body, chunk(R"({"text":"Hi","index":0,"finish_reason":null})") +
                                         chunk(R"({"text":"","index":0,"finish_reason":"stop"})") +
                                         chunk("", std::string(",") + kUsage) + kDone);
  EXPECT_EQ(exchange->keepalive(), chunk(R"({"text":"","index":0,"finish_reason":null})"));
  EXPECT_EQ(exchange->ends, 1);
}

TEST(CompletionStream, LogProbabilitiesCountCharacters) {
  OpenAiReplyOptions options = options_for(true);
  options.top_logprobs = true;
  const auto exchange = play(options, {scored_event(), scored_event()});
  const auto expected = [](const char* offsets) {
    return chunk(
        std::string("{\"text\":\"\xc3\xa9z\",\"index\":0,\"logprobs\":{\"tokens\":[\"bytes:\\\\xc3\","
                    "\"bytes:\\\\xa9\",\"z\"],\"token_logprobs\":[-0.5,-0.25,0],\"top_logprobs\":[{"
                    "\"bytes:\\\\xc3\":-0.5,\"a\":-2},{},{}],\"text_offset\":[")
            .append(offsets)
            .append("]},\"finish_reason\":null}"));
  };
  EXPECT_EQ(exchange->response.body, expected("0,1,1") + expected("2,3,3"));
}

TEST(CompletionStream, Failures) {
  EXPECT_EQ(play(options_for(true), {failed_event(context_overflow(9, 8, "messages"))})->response.body,
            openai_error(context_overflow(9, 8, "prompt")) + "\n");
  EXPECT_EQ(play(options_for(true), {started_event(), finished_event(FinishReason::error), done_event({})})
                ->response.body,
            std::string("event: error\ndata: {\"error\":{\"message\":\"generation "
                        "failed\",\"type\":\"server_error\"}}\n\n") +
                kDone);
}

TEST(CompletionReply, Choices) {
  OpenAiReplyOptions options = options_for(false);
  options.choices = 2;
  GenerationEvent stopped = finished_event(FinishReason::stop, 1);
  stopped.stop_sequence = "\n";
  const auto exchange =
      play(options, {started_event(), scored_event(1), text_event(Event::content, "thought</think>a", 0),
                     finished_event(FinishReason::length, 0), stopped, done_event({5, 0, 7, 3})});
  EXPECT_EQ(exchange->response.body,
            "{\"id\":\"cmpl-2\",\"object\":\"text_completion\",\"created\":1770000000,\"model\":\"deepseek-"
            "v4-flash\","
            "\"choices\":[{\"text\":\"thought</"
            "think>a\",\"index\":0,\"finish_reason\":\"length\"},{\"text\":\"\xc3\xa9z\","
            "\"index\":1,\"logprobs\":{\"tokens\":[\"bytes:\\\\xc3\",\"bytes:\\\\xa9\",\"z\"],\"token_"
            "logprobs\":[-0.5,-0.25,0"
            "],\"top_logprobs\":null,\"text_offset\":[0,1,1]},\"finish_reason\":\"stop\",\"stop_reason\":"
            "\"\\n\"}]," +
                std::string(kUsage) + "}\n");
}

class CompletionRequestTest : public testing::Test {
 protected:
  GenerationRequest read(const std::string& body) {
    errors_ = FieldErrors();
    request_.body = body;
    return read_completion_request(request_, info_, errors_).generation;
  }
  std::string refused(const std::string& body) {
    read(body);
    return errors_ ? errors_.first().param + ": " + errors_.first().message : "";
  }
  ServerInfo info_ = FakeGenerator().server;
  http::Request request_;
  FieldErrors errors_;
};

TEST_F(CompletionRequestTest, Fields) {
  const GenerationRequest request = read(
      R"({"prompt":"Once","model":"m","max_tokens":5,"temperature":0,"stop":"x","n":2,"best_of":2,"logprobs":3,)"
      R"("seed":1,"echo":false,"suffix":null,"user":"u"})");
  EXPECT_FALSE(errors_);
  EXPECT_EQ(request.kind, GenerationRequest::Kind::completion);
  EXPECT_EQ(request.prompt, "Once");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 5u);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_THAT(request.stop, testing::ElementsAre("x"));
  EXPECT_EQ(request.choices, 2u);
  EXPECT_TRUE(request.logprobs);
  EXPECT_EQ(request.top_logprobs, 3u);
  EXPECT_EQ(request.seed, 1u);
  EXPECT_EQ(request.conversation, "u");
  EXPECT_FALSE(request.side);
  EXPECT_EQ(request.thinking.mode, ThinkMode::high);
  EXPECT_EQ(read(R"({"prompt":["Once"],"thinking":false})").prompt, "Once");
  EXPECT_EQ(read(R"({"prompt":"","logprobs":0})").logprobs, true);
  EXPECT_FALSE(errors_);
}

TEST_F(CompletionRequestTest, Infill) {
  const GenerationRequest request =
      read(R"({"prompt":"def f(","suffix":"  return x","reasoning_effort":"max"})");
  EXPECT_FALSE(errors_);
  EXPECT_EQ(request.kind, GenerationRequest::Kind::infill);
  EXPECT_EQ(request.suffix, "  return x");
  EXPECT_TRUE(request.side);
  EXPECT_EQ(request.thinking.mode, ThinkMode::none);
  EXPECT_EQ(read(R"({"prompt":"a","suffix":""})").kind, GenerationRequest::Kind::completion);
  info_.infill = false;
  EXPECT_EQ(refused(R"({"prompt":"a","suffix":"b"})"),
            "suffix: suffix is not supported: this vocabulary has no tokens for it");
}

TEST_F(CompletionRequestTest, Refusals) {
  EXPECT_EQ(refused("{}"), "prompt: missing prompt");
  EXPECT_EQ(refused(R"({"prompt":5})"), "prompt: prompt must be a string");
  EXPECT_EQ(refused(R"({"prompt":[]})"), "prompt: prompt must not be empty");
  EXPECT_EQ(refused(R"({"prompt":["a","b"]})"), "prompt: prompt with several prompts is not supported");
  EXPECT_EQ(refused(R"({"prompt":[1,2]})"), "prompt: prompt as tokens is not supported");
  EXPECT_EQ(refused(R"({"prompt":[[1,2]]})"), "prompt: prompt as tokens is not supported");
  EXPECT_EQ(refused(R"({"prompt":"a","echo":true})"), "echo: echo is not supported");
  EXPECT_EQ(refused(R"({"prompt":"a","best_of":2})"), "best_of: best_of is not supported");
  EXPECT_EQ(refused(R"({"prompt":"a","logprobs":true})"), "logprobs: logprobs must be an integer");
  EXPECT_EQ(refused(R"({"prompt":"a","logprobs":21})"),
            "logprobs: logprobs must be an integer between 0 and 20");
  EXPECT_EQ(refused(R"({"prompt":"a","n":17})"), "n: n must be an integer between 1 and 16");
  EXPECT_EQ(refused(R"({"prompt":"a","suffix":1})"), "suffix: suffix must be a string");
  EXPECT_EQ(refused(R"({"prompt":"a","response_format":{"type":"json_object"}})"),
            "response_format: response_format is not supported");
}

TEST(HandleCompletions, AnswersOrSubmits) {
  FakeGenerator generator;
  generator.script = {started_event(), text_event(Event::content, "Hi"), done_event({})};
  http::Request request;
  request.body = R"({"prompt":"Say hi","stream":true})";
  auto exchange = std::make_shared<FakeExchange>();
  handle_completions(request, exchange, generator);
  EXPECT_EQ(generator.submitted, 1);
  EXPECT_THAT(exchange->response.body, testing::StartsWith("data: {\"id\":\"cmpl-"));
  request.body = "[]";
  exchange = std::make_shared<FakeExchange>();
  handle_completions(request, exchange, generator);
  EXPECT_EQ(generator.submitted, 1);
  EXPECT_EQ(exchange->response.status, 400);
}

}  // namespace
}  // namespace ds4::server::api
