#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "server/api/error_body.hpp"
#include "server/api/event_stream.hpp"
#include "server/api/openai_reply.hpp"
#include "server/api/openai_responses_items.hpp"
#include "server/api/test_api.hpp"
#include "server/api/test_messages.hpp"

namespace ds4::server::api {
namespace {

using Event = GenerationEvent::Kind;
using ToolKind = ResponseTool::Kind;

ResponsesReplyOptions options_for(bool stream) {
  ResponsesReplyOptions options;
  options.id = "resp_1";
  options.created = 1770000000;
  options.model = "deepseek-v4-flash";
  options.stream = stream;
  options.headers = {{"x-ds4-thinking", "high"}};
  options.new_id = [](std::string_view prefix) { return std::string(prefix) + "1"; };
  options.tools = {{"apply_patch", {ToolKind::custom, "apply_patch", ""}},
                   {"s__f", {ToolKind::function, "f", "s__"}},
                   {"tool_search", {ToolKind::tool_search, "tool_search", ""}},
                   {"local_shell", {ToolKind::local_shell, "local_shell", ""}}};
  return options;
}

std::shared_ptr<FakeExchange> play(ResponsesReplyOptions options,
                                   const std::vector<GenerationEvent>& events) {
  return play_on([&](const auto& exchange) { return make_responses_reply(std::move(options), exchange); },
                 events);
}

/// Events with consecutive numbers.
class Script {
 public:
  Script& add(const std::string& type, const std::string& members) {
    text_ += "event: " + type + "\ndata: {\"type\":\"" + type +
             "\",\"sequence_number\":" + std::to_string(number_++) + "," + members + "}\n\n";
    return *this;
  }
  Script& item(const std::string& type, int index, const std::string& item) {
    return add("response.output_item." + type,
               "\"output_index\":" + std::to_string(index) + ",\"item\":" + item);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  int number_ = 0;
};

const std::string kHead =
    R"("response":{"id":"resp_1","object":"response","created_at":1770000000,"status":)";
const std::string kModel = R"(,"model":"deepseek-v4-flash")";
const std::string kReasoning = R"(,"reasoning":{"effort":"high"}})";
const std::string kUsage =
    R"(,"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":2,"cache_write_tokens":3},"output_tokens":7,)"
    R"("output_tokens_details":{"reasoning_tokens":1},"total_tokens":12})";
const std::string kMessage =
    R"({"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text",)"
    R"("text":"Hi!","annotations":[]}]})";
const std::string kWhere = R"("item_id":"msg_1","output_index":0,"content_index":0,)";

Script begun() {
  Script script;
  script.add("response.created", kHead + R"("in_progress")" + kModel + R"(,"output":[])" + kReasoning);
  return script;
}

void add_message(Script& script, const std::vector<std::string>& pieces,
                 const std::string& status = "completed") {
  script.item("added", 0,
              R"({"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]})");
  script.add("response.content_part.added",
             kWhere + R"("part":{"type":"output_text","text":"","annotations":[]})");
  std::string text;
  for (const std::string& piece : pieces) {
    script.add("response.output_text.delta", kWhere + "\"delta\":\"" + piece + "\"");
    text += piece;
  }
  script.add("response.output_text.done", kWhere + "\"text\":\"" + text + "\"");
  script.add("response.content_part.done",
             kWhere + R"("part":{"type":"output_text","text":")" + text + R"(","annotations":[]})");
  script.item("done", 0,
              R"({"id":"msg_1","type":"message","status":")" + status +
                  R"(","role":"assistant","content":[{"type":"output_text","text":")" + text +
                  R"(","annotations":[]}]})");
}

TEST(ResponsesStream, Progress) {
  const auto exchange =
      play(options_for(true), {progress_event(0, 0), started_event(), progress_event(512, 2048)});
  Script script = begun();
  script.add("response.in_progress", kHead + R"("in_progress")" + kModel + R"(,"output":[])" + kReasoning +
                                         R"(,"prefill":{"done":512,"total":2048})");
  EXPECT_EQ(exchange->response.body, script.text());
  EXPECT_EQ(play(options_for(false), {started_event(), progress_event(512, 2048)})->response.body, "");
}

TEST(ResponsesStream, Text) {
  const auto exchange =
      play(options_for(true),
           {started_event(), text_event(Event::progress, ""), text_event(Event::reasoning, "hm"),
            text_event(Event::content, "Hi"), text_event(Event::content, "!"),
            finished_event(FinishReason::stop), done_event({5, 2, 7, 1})});
  Script script = begun();
  add_message(script, {"Hi", "!"});
  script.add("response.completed",
             kHead + R"("completed")" + kModel + ",\"output\":[" + kMessage + "]" + kUsage + kReasoning);
  EXPECT_EQ(exchange->response.body, script.text());
  EXPECT_EQ(exchange->response.content_type, "text/event-stream");
  EXPECT_EQ(exchange->response.headers, (http::HeaderList{{"x-ds4-thinking", "high"}}));
  EXPECT_EQ(exchange->keepalive_interval, kKeepaliveInterval);
  EXPECT_EQ(exchange->streams, 1);
  EXPECT_EQ(exchange->ends, 1);
  EXPECT_EQ(exchange->responses, 0);
}

TEST(ResponsesStream, KeepalivesTakeTheNextNumberAndAreMadeOnlyThen) {
  auto exchange = std::make_shared<FakeExchange>();
  const auto reply = make_responses_reply(options_for(true), exchange);
  const auto in_progress = [](int number) {
    return fmt::format(
               "event: response.in_progress\ndata: "
               "{{\"type\":\"response.in_progress\",\"sequence_number\":{},",
               number) +
           kHead + R"("in_progress")" + kModel + R"(,"output":[])" + kReasoning + "}\n\n";
  };
  reply->on_event(started_event());
  EXPECT_EQ(exchange->keepalive(), in_progress(1));
  EXPECT_EQ(exchange->keepalive(), in_progress(2));
  for (const char* text : {"Hi", "!"}) reply->on_event(text_event(Event::content, text));
  EXPECT_THAT(exchange->response.body,
              testing::HasSubstr(R"("response.output_text.delta","sequence_number":6,)"));
  EXPECT_EQ(exchange->keepalive(), in_progress(7));
  EXPECT_EQ(exchange->keepalives_set, 1);
}

// While an event is on its way, silence needs no filling, and nobody waits for anybody.
TEST(ResponsesStream, NoKeepaliveInTheMiddleOfAnEvent) {
  class Interrupted final : public FakeExchange {
   public:
    void write(std::string bytes) override {
      std::string made = "unset";
      std::thread([&] { made = keepalive(); }).join();
      EXPECT_TRUE(!make_keepalive || made.empty()) << made;
      FakeExchange::write(std::move(bytes));
    }
  };
  const auto exchange = std::make_shared<Interrupted>();
  const auto reply = make_responses_reply(options_for(true), exchange);
  for (const GenerationEvent& event : {started_event(), text_event(Event::content, "Hi")})
    reply->on_event(event);
  EXPECT_THAT(exchange->response.body, testing::HasSubstr("Hi"));
  EXPECT_NE(exchange->keepalive(), "");
}

// A client that has the last byte may go on from the response, or from its items.
TEST(Responses, AreKeptBeforeTheClientHasThem) {
  class Client final : public FakeExchange {
   public:
    void respond(http::Response /*value*/) override { kept = store->get_of_item("msg_1") != nullptr; }
    void write(std::string bytes) override {
      if (bytes.starts_with("event: response.completed")) kept = store->get("resp_1") != nullptr;
    }
    std::shared_ptr<ResponseStore> store = std::make_shared<ResponseStore>();
    bool kept = false;
  };
  for (const bool stream : {false, true}) {
    const auto client = std::make_shared<Client>();
    ResponsesReplyOptions options = options_for(stream);
    options.store = client->store;
    const auto reply = make_responses_reply(std::move(options), client);
    for (const GenerationEvent& event : {started_event(), text_event(Event::content, "Hi"),
                                         finished_event(FinishReason::stop), done_event({})})
      reply->on_event(event);
    EXPECT_TRUE(client->kept) << stream;
  }
}

TEST(ResponsesStream, SummaryOfReasoning) {
  ResponsesReplyOptions options = options_for(true);
  options.summaries = true;
  options.previous_response_id = "resp_0";
  const auto exchange =
      play(std::move(options),
           {started_event(), text_event(Event::reasoning, "a"), text_event(Event::reasoning, "b"),
            call_event("call_1", "s__f"), text_event(Event::call_arguments, "{\"x\":"),
            text_event(Event::call_arguments, "1}"), text_event(Event::call_end, "{\"x\":1}"),
            finished_event(FinishReason::tool_calls), done_event({5, 2, 7, 1})});
  const std::string rest = R"(,"previous_response_id":"resp_0")" + kReasoning;
  const std::string where = R"("item_id":"rs_1","output_index":0,"summary_index":0,)";
  const std::string call_where = R"("item_id":"fc_1","output_index":1,)";
  const std::string reasoning =
      R"({"id":"rs_1","type":"reasoning","status":"completed","summary":[{"type":"summary_text","text":"ab"}]})";
  const auto call = [](const std::string& status, const std::string& arguments) {
    return R"({"id":"fc_1","type":"function_call","status":")" + status +
           R"(","name":"f","namespace":"s__","call_id":"call_1","arguments":")" + arguments + "\"}";
  };
  Script script;
  script.add("response.created", kHead + R"("in_progress")" + kModel + R"(,"output":[])" + rest)
      .item("added", 0, R"({"id":"rs_1","type":"reasoning","status":"in_progress","summary":[]})")
      .add("response.reasoning_summary_part.added", where + R"("part":{"type":"summary_text","text":""})")
      .add("response.reasoning_summary_text.delta", where + R"("delta":"a")")
      .add("response.reasoning_summary_text.delta", where + R"("delta":"b")")
      .add("response.reasoning_summary_text.done", where + R"("text":"ab")")
      .add("response.reasoning_summary_part.done", where + R"("part":{"type":"summary_text","text":"ab"})")
      .item("done", 0, reasoning)
      .item("added", 1, call("in_progress", ""))
      .add("response.function_call_arguments.delta", call_where + R"("delta":"{\"x\":")")
      .add("response.function_call_arguments.delta", call_where + R"("delta":"1}")")
      .add("response.function_call_arguments.done",
           call_where + R"("name":"f","namespace":"s__","arguments":"{\"x\":1}")")
      .item("done", 1, call("completed", R"({\"x\":1})"))
      .add("response.completed", kHead + R"("completed")" + kModel + ",\"output\":[" + reasoning + "," +
                                     call("completed", R"({\"x\":1})") + "]" + kUsage + rest);
  EXPECT_EQ(exchange->response.body, script.text());
}

TEST(ResponsesStream, CustomToolCall) {
  const auto exchange =
      play(options_for(true),
           {call_event("call_1", "apply_patch"), text_event(Event::call_arguments, "{\"inp"),
            text_event(Event::call_arguments, "ut\":\"a\\"), text_event(Event::call_arguments, "n\\u00"),
            text_event(Event::call_arguments, "e9"), text_event(Event::call_arguments, "\"}"),
            text_event(Event::call_end, R"({"input":"a\n\u00e9"})"), done_event({5, 2, 7, 1})});
  const auto call = [](const std::string& status, const std::string& input) {
    return R"({"id":"ctc_1","type":"custom_tool_call","status":")" + status +
           R"(","name":"apply_patch","call_id":"call_1","input":")" + input + "\"}";
  };
  const std::string where = R"("item_id":"ctc_1","output_index":0,)";
  Script script = begun();
  script.item("added", 0, call("in_progress", ""))
      .add("response.custom_tool_call_input.delta", where + R"("delta":"a")")
      .add("response.custom_tool_call_input.delta", where + R"("delta":"\n")")
      .add("response.custom_tool_call_input.delta", where + "\"delta\":\"\xc3\xa9\"")
      .add("response.custom_tool_call_input.done", where + "\"input\":\"a\\n\xc3\xa9\"")
      .item("done", 0, call("completed", "a\\n\xc3\xa9"))
      .add("response.completed", kHead + R"("completed")" + kModel + ",\"output\":[" +
                                     call("completed", "a\\n\xc3\xa9") + "]" + kUsage + kReasoning);
  EXPECT_EQ(exchange->response.body, script.text());
}

TEST(ResponsesStream, CallsThatAreAnnouncedWhenComplete) {
  const auto exchange =
      play(options_for(true),
           {call_event("call_1", "tool_search"), text_event(Event::call_arguments, "{\"query\""),
            text_event(Event::call_end, R"({"query":"q"})"), call_event("call_2", "local_shell", 1),
            text_event(Event::call_end, R"({"type":"x","command":["ls"]})", 0, 1),
            call_event("call_3", "tool_search", 2)});
  Script script = begun();
  script
      .item(
          "added", 0,
          R"({"id":"fc_1","type":"tool_search_call","status":"in_progress","call_id":"call_1","execution":"client","arguments":{}})")
      .item(
          "done", 0,
          R"({"id":"fc_1","type":"tool_search_call","status":"completed","call_id":"call_1","execution":"client","arguments":{"query":"q"}})")
      .item(
          "added", 1,
          R"({"id":"lsh_1","type":"local_shell_call","status":"in_progress","call_id":"call_2","action":{"type":"exec"}})")
      .item(
          "done", 1,
          R"({"id":"lsh_1","type":"local_shell_call","status":"completed","call_id":"call_2","action":{"type":"exec","command":["ls"]}})");
  EXPECT_EQ(exchange->response.body, script.text());
}

TEST(ResponsesStream, AnswersThatAreCut) {
  const auto exchange =
      play(options_for(true), {started_event(), text_event(Event::content, "Hi!"),
                               finished_event(FinishReason::length), done_event({5, 2, 7, 1})});
  Script script = begun();
  add_message(script, {"Hi!"}, "incomplete");
  std::string message = kMessage;
  message.replace(message.find("completed"), 9, "incomplete");
  script.add("response.incomplete", kHead + R"("incomplete")" + kModel +
                                        R"(,"incomplete_details":{"reason":"max_output_tokens"},"output":[)" +
                                        message + "]" + kUsage + kReasoning);
  EXPECT_EQ(exchange->response.body, script.text());
}

/// Clients act on calls that are done, so one that broke off never is.
TEST(ResponsesStream, DroppedCallsAreNeverDone) {
  const auto exchange =
      play(options_for(true), {call_event("call_1", "f"), text_event(Event::call_arguments, "{\"x"),
                               text_event(Event::call_dropped, ""), finished_event(FinishReason::length),
                               done_event({5, 2, 7, 1})});
  EXPECT_THAT(exchange->response.body, testing::HasSubstr("response.output_item.added"));
  EXPECT_THAT(exchange->response.body, testing::Not(testing::HasSubstr("response.output_item.done")));
  EXPECT_THAT(exchange->response.body, testing::HasSubstr("\"output\":[],\"usage\""));
}

TEST(ResponsesStream, Failures) {
  const auto before =
      play(options_for(true), {failed_event(context_overflow(9, 8, "messages")), started_event()});
  EXPECT_EQ(before->streams, 0);
  EXPECT_EQ(before->response.status, 400);
  EXPECT_EQ(before->response.body, openai_error(context_overflow(9, 8, "input")) + "\n");
  Script script = begun();
  script.add("response.failed",
             kHead + R"("failed")" + kModel +
                 R"(,"error":{"code":"server_error","message":"generation failed"},"output":[])" +
                 kReasoning);
  EXPECT_EQ(play(options_for(true), {started_event(), finished_event(FinishReason::error), done_event({})})
                ->response.body,
            script.text());
  RequestError lost;
  lost.code = "device_lost";
  lost.message = "lost";
  const auto later =
      play(options_for(true), {started_event(), text_event(Event::content, "Hi!"), failed_event(lost)});
  EXPECT_THAT(later->response.body,
              testing::HasSubstr(R"("error":{"code":"device_lost","message":"lost"},"output":[{)"));
  EXPECT_EQ(later->ends, 1);
}

TEST(ResponsesReply, Complete) {
  auto store = std::make_shared<ResponseStore>();
  ResponsesReplyOptions options = options_for(false);
  options.store = store;
  options.conversation.emplace_back().content = "go";
  const auto exchange =
      play(std::move(options),
           {started_event(), text_event(Event::reasoning, "r"), text_event(Event::content, "Hi!"),
            call_event("call_1", "apply_patch"), text_event(Event::call_end, R"({"input":"x"})"),
            call_event("call_2", "s__f", 1), text_event(Event::call_dropped, "", 0, 1),
            finished_event(FinishReason::tool_calls), done_event({5, 2, 7, 1})});
  EXPECT_EQ(
      exchange->response.body,
      R"({"id":"resp_1","object":"response","created_at":1770000000,"status":"completed","model":"deepseek-v4-flash")"
      ",\"output\":[" +
          kMessage +
          R"(,{"id":"ctc_1","type":"custom_tool_call","status":"completed","name":"apply_patch","call_id":"call_1",)"
          R"("input":"x"}])" +
          kUsage + kReasoning);
  EXPECT_EQ(exchange->streams, 0);
  EXPECT_EQ(exchange->responses, 1);
  EXPECT_EQ(exchange->response.headers, (http::HeaderList{{"x-ds4-thinking", "high"}}));
  const auto stored = store->get("resp_1");
  ASSERT_NE(stored, nullptr);
  EXPECT_EQ(stored->body, exchange->response.body);
  EXPECT_THAT(shown(stored->messages),
              testing::ElementsAre("user: go", "assistant: <r>Hi! call_1=apply_patch{\"input\":\"x\"}"));
}

TEST(ResponsesReply, Failures) {
  const auto exchange =
      play(options_for(false), {started_event(), finished_event(FinishReason::error), done_event({})});
  EXPECT_EQ(exchange->response.status, 500);
  EXPECT_EQ(exchange->responses, 1);
  exchange->left = true;
  EXPECT_TRUE(make_responses_reply(options_for(false), exchange)->gone());
}

TEST(CustomInput, OfArguments) {
  EXPECT_EQ(custom_input(R"({"input":"a\n"})"), "a\n");
  EXPECT_EQ(custom_input(R"({"x":"b","input":"a"})"), "a");
  EXPECT_EQ(custom_input(R"({"patch":"a"})"), "a");
  EXPECT_EQ(custom_input(R"({"input":{"a":1}})"), R"({"input":{"a":1}})");
  EXPECT_EQ(custom_input(R"({"x":"a","y":"b"})"), R"({"x":"a","y":"b"})");
  EXPECT_EQ(custom_input("{}"), "{}");
}

TEST(CustomInput, IsReadAtAnySplit) {
  const std::string arguments = R"({"input":"a\"\\\n\u00e9\ud83d\ude00\ud83dx\ud83d\n","y":"z"})";
  for (size_t stride = 1; stride <= arguments.size(); ++stride) {
    CustomInputReader reader;
    std::string text;
    for (size_t at = 0; at < arguments.size(); at += stride)
      text += reader.push(arguments.substr(at, stride));
    EXPECT_EQ(text, custom_input(arguments)) << stride;
    EXPECT_EQ(reader.text(), text);
  }
  CustomInputReader other;
  EXPECT_EQ(other.push(R"({"patch":"a"})"), "");
}

/// Follows a stream: numbers, pairs, and what the deltas add up to.
struct StreamedItems {
  explicit StreamedItems(const std::string& body) {
    for (size_t at = 0; at < body.size();) {
      const size_t data = body.find("data: ", at) + 6;
      const size_t end = body.find("\n\n", data);
      take(body.substr(at + 7, data - 7 - at - 7),
           JsonValue(std::string_view(body).substr(data, end - data)));
      at = end + 2;
    }
    EXPECT_TRUE(ended_);
    EXPECT_FALSE(open_);
  }
  std::string output;    // the items that were done
  std::string response;  // the last event's

 private:
  void take(const std::string& name, const JsonValue& event) {
    FieldErrors errors;
    const Fields fields(event, "", errors);
    const std::string type = *fields.string("type");
    EXPECT_EQ(type, name);
    EXPECT_FALSE(ended_);
    EXPECT_EQ(*fields.count("sequence_number", 0, 100000), number_++);
    if (type == "response.output_item.added") {
      EXPECT_FALSE(std::exchange(open_, true));
      EXPECT_EQ(*fields.count("output_index", 0, 1000), index_);
      text_.clear();
    } else if (type.ends_with(".delta")) {
      EXPECT_TRUE(open_);
      EXPECT_EQ(*fields.count("output_index", 0, 1000), index_);
      text_ += *fields.string("delta");
    } else if (type == "response.output_item.done") {
      EXPECT_TRUE(std::exchange(open_, false));
      EXPECT_EQ(*fields.count("output_index", 0, 1000), index_++);
      const std::string item(fields.find("item")->text());
      std::string quoted;
      append_json_string(quoted, text_);
      EXPECT_NE(item.find(":" + quoted), std::string::npos) << item << text_;
      output += (output.empty() ? "" : ",") + item;
    } else if (type == "response.completed") {
      ended_ = true;
      response = fields.find("response")->text();
    }
  }
  size_t number_ = 0, index_ = 0;
  bool open_ = false, ended_ = false;
  std::string text_;
};

std::vector<GenerationEvent> random_events(std::mt19937& random) {
  std::vector<GenerationEvent> events = {started_event()};
  size_t calls = 0;
  const size_t steps = random() % 8;
  for (size_t i = 0; i < steps; ++i) {
    const std::string text =
        std::string(random() % 3, 'a' + random() % 26) + (random() % 4 == 0 ? "\"\n" : "");
    if (random() % 3 != 0) {
      events.push_back(text_event(random() % 2 == 0 ? Event::reasoning : Event::content, text));
      continue;
    }
    const bool custom = random() % 2 == 0;
    events.push_back(call_event("call_" + std::to_string(calls), custom ? "apply_patch" : "s__f", calls));
    const std::string arguments = custom ? R"({"input":"a\n)" + std::to_string(random()) + "\"}"
                                         : R"({"k":)" + std::to_string(random()) + "}";
    const size_t stride = 1 + random() % 20;
    if (random() % 4 != 0) {
      for (size_t at = 0; at < arguments.size(); at += stride) {
        events.push_back(text_event(Event::call_arguments, arguments.substr(at, stride), 0, calls));
      }
    }
    events.push_back(text_event(Event::call_end, arguments, 0, calls++));
  }
  events.push_back(finished_event(FinishReason::stop));
  events.push_back(done_event({7, 3, 9, 1}));
  return events;
}

TEST(ResponsesReply, StreamsAddUpToTheCompleteReply) {
  std::mt19937 random(7);
  for (int run = 0; run < 500; ++run) {
    const auto events = random_events(random);
    ResponsesReplyOptions streamed = options_for(true), complete = options_for(false);
    streamed.summaries = complete.summaries = run % 2 == 0;
    const StreamedItems items(play(std::move(streamed), events)->response.body);
    const std::string body = play(std::move(complete), events)->response.body;
    ASSERT_EQ(items.response, body);
    ASSERT_NE(body.find("\"output\":[" + items.output + "],\"usage\""), std::string::npos)
        << items.output << body;
  }
}

}  // namespace
}  // namespace ds4::server::api
