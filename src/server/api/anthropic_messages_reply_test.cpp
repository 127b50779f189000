#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "server/api/anthropic_messages.hpp"
#include "server/api/error_body.hpp"
#include "server/api/event_stream.hpp"
#include "server/api/openai_reply.hpp"
#include "server/api/test_api.hpp"

namespace ds4::server::api {
namespace {

using Event = GenerationEvent::Kind;

MessagesReplyOptions options_for(bool stream) {
  return {"msg_1", "deepseek-v4-flash", stream, {{"x-ds4-thinking", "high"}}};
}

std::shared_ptr<FakeExchange> play(bool stream, const std::vector<GenerationEvent>& events) {
  return play_on([&](const auto& exchange) { return make_messages_reply(options_for(stream), exchange); },
                 events);
}

GenerationEvent started(Usage usage) {
  GenerationEvent event = started_event();
  event.usage = usage;
  return event;
}

std::string sse(const std::string& name, const std::string& members = "") {
  return "event: " + name + "\ndata: {\"type\":\"" + name + "\"" + (members.empty() ? "" : "," + members) +
         "}\n\n";
}
std::string start(const std::string& usage) {
  return sse(
      "message_start",
      R"("message":{"id":"msg_1","type":"message","role":"assistant","model":"deepseek-v4-flash","content":[],)"
      R"("stop_reason":null,"stop_sequence":null,"usage":)" +
          usage + "}");
}
std::string block_start(int index, const std::string& block) {
  return sse("content_block_start", "\"index\":" + std::to_string(index) + ",\"content_block\":" + block);
}
std::string block_delta(int index, const std::string& delta) {
  return sse("content_block_delta", "\"index\":" + std::to_string(index) + ",\"delta\":" + delta);
}
std::string block_stop(int index) {
  return sse("content_block_stop", "\"index\":" + std::to_string(index));
}
std::string input_delta(int index, const std::string& escaped) {
  return block_delta(index, R"({"type":"input_json_delta","partial_json":")" + escaped + "\"}");
}
std::string stop(const std::string& reason, const std::string& sequence, int output, int reasoning,
                 int cached = 0, int created = 0) {
  return sse("message_delta",
             "\"delta\":{\"stop_reason\":\"" + reason + "\",\"stop_sequence\":" + sequence +
                 "},\"usage\":{\"input_tokens\":0,\"output_tokens\":" + std::to_string(output) +
                 ",\"cache_read_input_tokens\":" + std::to_string(cached) +
                 ",\"cache_creation_input_tokens\":" + std::to_string(created) +
                 ",\"output_tokens_details\":{\"reasoning_tokens\":" + std::to_string(reasoning) + "}}") +
         sse("message_stop");
}
const char kThinkingStart[] = R"({"type":"thinking","thinking":"","signature":""})";
const char kTextStart[] = R"({"type":"text","text":""})";
const char kZeroUsage[] =
    R"({"input_tokens":0,"output_tokens":0,"cache_read_input_tokens":0,"cache_creation_input_tokens":0})";

std::vector<GenerationEvent> tool_call_events() {
  std::vector<GenerationEvent> events = {started({120, 0, 0, 0}), text_event(Event::progress, ""),
                                         text_event(Event::reasoning, "Need ls."),
                                         call_event("toolu_0123456789abcdef0123456789abcdef", "bash")};
  for (const char* piece : {"{", "\"command\":\"", "ls", "\"", "}"}) {
    events.push_back(text_event(Event::call_arguments, piece));
  }
  events.push_back(text_event(Event::call_end, R"({"command":"ls"})"));
  events.push_back(finished_event(FinishReason::tool_calls));
  events.push_back(done_event({120, 0, 31, 4}));
  return events;
}

TEST(MessagesStream, ThinkingAndToolCall) {
  const auto exchange = play(true, tool_call_events());
  EXPECT_EQ(
      exchange->response.body,
      start(
          R"({"input_tokens":0,"output_tokens":0,"cache_read_input_tokens":0,"cache_creation_input_tokens":120})") +
          block_start(0, kThinkingStart) +
          block_delta(0, R"({"type":"thinking_delta","thinking":"Need ls."})") +
          block_delta(0, R"({"type":"signature_delta","signature":"msg_1"})") + block_stop(0) +
          block_start(1, R"({"type":"tool_use","id":"toolu_0123456789abcdef0123456789abcdef","name":"bash",)"
                         R"("input":{}})") +
          input_delta(1, "{") + input_delta(1, R"(\"command\":\")") + input_delta(1, "ls") +
          input_delta(1, R"(\")") + input_delta(1, "}") + block_stop(1) +
          stop("tool_use", "null", 31, 4, 0, 120));
  EXPECT_EQ(exchange->response.content_type, "text/event-stream");
  EXPECT_EQ(exchange->response.headers, (http::HeaderList{{"x-ds4-thinking", "high"}}));
  EXPECT_EQ(exchange->keepalive(), sse("ping"));
  EXPECT_EQ(exchange->keepalive_interval, kKeepaliveInterval);
  EXPECT_EQ(exchange->streams, 1);
  EXPECT_EQ(exchange->ends, 1);
  EXPECT_EQ(exchange->responses, 0);
}

TEST(MessagesStream, WhatWasCachedIsToldAtTheEndOfAStreamThatWaited) {
  GenerationEvent waits;
  waits.kind = Event::progress;
  waits.usage = {10, 0, 0, 0};
  const auto exchange = play(true, {waits, started({10, 4, 0, 0}), text_event(Event::content, "Hi"),
                                    finished_event(FinishReason::stop), done_event({10, 4, 3, 0})});
  EXPECT_EQ(
      exchange->response.body,
      start(
          R"({"input_tokens":0,"output_tokens":0,"cache_read_input_tokens":0,"cache_creation_input_tokens":10})") +
          block_start(0, kTextStart) + block_delta(0, R"({"type":"text_delta","text":"Hi"})") +
          block_stop(0) + stop("end_turn", "null", 3, 0, 4, 6));
}

TEST(MessagesStream, Progress) {
  const auto exchange = play(true, {progress_event(0, 0), started({}), progress_event(512, 2048)});
  EXPECT_EQ(exchange->response.body,
            start(kZeroUsage) + sse("ping", R"("prefill":{"done":512,"total":2048})"));
  EXPECT_EQ(play(false, {started({}), progress_event(512, 2048)})->response.body, "");
}

TEST(MessagesStream, Text) {
  GenerationEvent finished = finished_event(FinishReason::stop);
  finished.stop_sequence = "END\n";
  const auto exchange =
      play(true, {started({10, 4, 0, 0}), text_event(Event::content, "Hi"), text_event(Event::content, ""),
                  text_event(Event::content, "!"), finished, done_event({10, 4, 3, 0})});
  EXPECT_EQ(
      exchange->response.body,
      start(
          R"({"input_tokens":0,"output_tokens":0,"cache_read_input_tokens":4,"cache_creation_input_tokens":6})") +
          block_start(0, kTextStart) + block_delta(0, R"({"type":"text_delta","text":"Hi"})") +
          block_delta(0, R"({"type":"text_delta","text":"!"})") + block_stop(0) +
          stop("stop_sequence", R"("END\n")", 3, 0, 4, 6));
}

TEST(MessagesStream, OnlyThinkingEndsWithAnEmptyText) {
  const auto exchange = play(true, {started({}), text_event(Event::reasoning, "r"),
                                    finished_event(FinishReason::length), done_event({0, 0, 1, 1})});
  EXPECT_EQ(exchange->response.body, start(kZeroUsage) + block_start(0, kThinkingStart) +
                                         block_delta(0, R"({"type":"thinking_delta","thinking":"r"})") +
                                         block_delta(0, R"({"type":"signature_delta","signature":"msg_1"})") +
                                         block_stop(0) + block_start(1, kTextStart) + block_stop(1) +
                                         stop("max_tokens", "null", 1, 1));
}

TEST(MessagesStream, CallsInOnePieceAndDroppedCalls) {
  const auto exchange = play(
      true, {started({}), text_event(Event::content, "a"), call_event("toolu_1", "f"),
             text_event(Event::call_end, "{}"), call_event("toolu_2", "g", 1),
             text_event(Event::call_arguments, "{\"x\"", 0, 1), text_event(Event::call_dropped, "", 0, 1),
             finished_event(FinishReason::length), done_event({})});
  EXPECT_EQ(exchange->response.body,
            start(kZeroUsage) + block_start(0, kTextStart) +
                block_delta(0, R"({"type":"text_delta","text":"a"})") + block_stop(0) +
                block_start(1, R"({"type":"tool_use","id":"toolu_1","name":"f","input":{}})") +
                input_delta(1, "{}") + block_stop(1) +
                block_start(2, R"({"type":"tool_use","id":"toolu_2","name":"g","input":{}})") +
                input_delta(2, R"({\"x\")") + block_stop(2) + stop("max_tokens", "null", 0, 0));
}

TEST(MessagesStream, Failures) {
  const auto before = play(true, {failed_event(context_overflow(9, 8, "messages")), started({})});
  EXPECT_EQ(before->streams, 0);
  EXPECT_EQ(before->response.status, 400);
  EXPECT_EQ(before->response.body, anthropic_error(context_overflow(9, 8, "messages")) + "\n");
  const std::string error =
      "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"generation "
      "failed\"}}\n\n";
  const auto later = play(true, {started({}), finished_event(FinishReason::error), done_event({})});
  EXPECT_EQ(later->response.body, start(kZeroUsage) + error);
  EXPECT_EQ(later->ends, 1);
  RequestError lost;
  lost.status = 503;
  lost.message = "lost";
  const auto failed = play(true, {started({}), failed_event(lost), done_event({})});
  EXPECT_EQ(failed->response.body,
            start(kZeroUsage) +
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
                "\"message\":\"lost\"}}\n\n");
  EXPECT_EQ(failed->ends, 1);
}

TEST(MessagesReply, Complete) {
  std::vector<GenerationEvent> events = tool_call_events();
  events.insert(events.begin() + 3, text_event(Event::content, "So:"));
  const auto exchange = play(false, events);
  EXPECT_EQ(exchange->streams, 0);
  EXPECT_EQ(exchange->responses, 1);
  EXPECT_EQ(exchange->response.headers, (http::HeaderList{{"x-ds4-thinking", "high"}}));
  EXPECT_EQ(
      exchange->response.body,
      R"({"id":"msg_1","type":"message","role":"assistant","model":"deepseek-v4-flash","content":[)"
      R"({"type":"thinking","thinking":"Need ls.","signature":"msg_1"},{"type":"text","text":"So:"},)"
      R"({"type":"tool_use","id":"toolu_0123456789abcdef0123456789abcdef","name":"bash","input":{"command":"ls"}}],)"
      R"("stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":0,"output_tokens":31,)"
      R"("cache_read_input_tokens":0,"cache_creation_input_tokens":120,"output_tokens_details":{)"
      R"("reasoning_tokens":4}}})"
      "\n");
}

TEST(MessagesReply, NothingAndHalfCalls) {
  const auto content_of = [](const std::vector<GenerationEvent>& events) {
    const std::string body = play(false, events)->response.body;
    const size_t begin = body.find("\"content\":") + 10;
    return body.substr(begin, body.find(",\"stop_reason\"") - begin);
  };
  EXPECT_EQ(content_of({started({}), finished_event(FinishReason::stop), done_event({})}),
            R"([{"type":"text","text":""}])");
  EXPECT_EQ(content_of({call_event("toolu_1", "f"), text_event(Event::call_arguments, "{\"x"),
                        text_event(Event::call_dropped, ""), call_event("toolu_2", "g", 1),
                        text_event(Event::call_end, "{}", 0, 1), done_event({})}),
            R"([{"type":"tool_use","id":"toolu_2","name":"g","input":{}}])");
  EXPECT_EQ(
      content_of({call_event("toolu_1", "f"), text_event(Event::call_arguments, "{\"x"), done_event({})}),
      R"([{"type":"text","text":""}])");
  EXPECT_EQ(play(false, {started({}), finished_event(FinishReason::error), done_event({})})->response.status,
            500);
}

TEST(MessagesReply, GoneWithTheExchange) {
  auto exchange = std::make_shared<FakeExchange>();
  const auto reply = make_messages_reply(options_for(false), exchange);
  EXPECT_FALSE(reply->gone());
  exchange->left = true;
  EXPECT_TRUE(reply->gone());
}

/// What a client makes of a stream: its blocks, as the complete reply writes them.
class StreamedBlocks {
 public:
  explicit StreamedBlocks(const std::string& body) {
    for (size_t at = 0; at < body.size();) {
      const size_t data = body.find("data: ", at) + 6;
      const size_t end = body.find("\n\n", data);
      take(JsonValue(std::string_view(body).substr(data, end - data)));
      at = end + 2;
    }
    EXPECT_FALSE(open_);
    EXPECT_TRUE(ended_);
  }
  std::string content;

 private:
  void take(const JsonValue& event) {
    FieldErrors errors;
    const Fields fields(event, "", errors);
    const std::string type = *fields.string("type");
    EXPECT_FALSE(ended_);
    if (type == "content_block_start") {
      EXPECT_FALSE(std::exchange(open_, true));
      EXPECT_EQ(*fields.count("index", 0, 1000), next_);
      block_ = fields.find("content_block")->text();
      text_.clear();
      signature_.clear();
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(open_);
      EXPECT_EQ(*fields.count("index", 0, 1000), next_);
      const Fields delta = *fields.object("delta");
      for (const char* name : {"text", "thinking", "partial_json"}) text_ += delta.string(name).value_or("");
      signature_ += delta.string("signature").value_or("");
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(std::exchange(open_, false));
      EXPECT_EQ(*fields.count("index", 0, 1000), next_++);
      const bool tool = block_.ends_with("\"input\":{}}");
      const bool thinking = block_.ends_with("\"signature\":\"\"}");
      const std::string tail = tool ? "{}}" : thinking ? "\"\",\"signature\":\"\"}" : "\"\"}";
      std::string block = block_.substr(0, block_.size() - tail.size());
      if (tool) {
        block += text_;
      } else {
        append_json_string(block, text_);
      }
      if (thinking) block += ",\"signature\":\"" + signature_ + "\"";
      content += (content.empty() ? "" : ",") + block + "}";
    } else {
      EXPECT_FALSE(open_);
      ended_ = type == "message_stop";
    }
  }

  bool open_ = false, ended_ = false;
  size_t next_ = 0;
  std::string block_, text_, signature_;
};

std::vector<GenerationEvent> random_events(std::mt19937& random) {
  std::vector<GenerationEvent> events = {started({7, 3, 0, 0})};
  size_t calls = 0;
  const size_t steps = random() % 8;
  for (size_t i = 0; i < steps; ++i) {
    const std::string text =
        std::string(random() % 3, 'a' + random() % 26) + (random() % 4 == 0 ? "\"\n" : "");
    if (random() % 3 != 0) {
      events.push_back(text_event(random() % 2 == 0 ? Event::reasoning : Event::content, text));
      continue;
    }
    events.push_back(call_event("toolu_" + std::to_string(calls), "f", calls));
    const std::string input = R"({"k":)" + std::to_string(random()) + "}";
    const size_t stride = 1 + random() % 20;
    if (random() % 4 != 0) {
      for (size_t at = 0; at < input.size(); at += stride) {
        events.push_back(text_event(Event::call_arguments, input.substr(at, stride), 0, calls));
      }
    }
    events.push_back(text_event(Event::call_end, input, 0, calls++));
  }
  events.push_back(finished_event(FinishReason::stop));
  events.push_back(done_event({7, 3, 9, 1}));
  return events;
}

TEST(MessagesReply, StreamsAddUpToTheCompleteReply) {
  std::mt19937 random(7);
  for (int run = 0; run < 500; ++run) {
    const auto events = random_events(random);
    const std::string streamed = StreamedBlocks(play(true, events)->response.body).content;
    const std::string complete = play(false, events)->response.body;
    ASSERT_NE(complete.find("\"content\":[" + streamed + "],\"stop_reason\""), std::string::npos)
        << streamed << "\n"
        << complete;
  }
}

}  // namespace
}  // namespace ds4::server::api
