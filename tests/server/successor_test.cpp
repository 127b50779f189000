// The whole server over a real engine whose weights make it write known bytes, cut into tokens anywhere.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "ds4/engine.hpp"
#include "server/api/routes.hpp"
#include "server/http/server.hpp"
#include "server/http/test_client.hpp"
#include "server/metrics.hpp"
#include "server/scheduler.hpp"
#include "support/loaded_model.hpp"
#include "support/successor_model.hpp"

namespace ds4::server {
namespace {

namespace json = boost::json;

constexpr const char* kReasoning = "Zuerst die Straße prüfen — dann rufen.";
constexpr const char* kText = "Ich sehe nach: “größer”.";
constexpr const char* kBlock =
    "\n\n<tool_calls>\n<invoke name=\"look\">\n<parameter name=\"path\" string=\"true\">a \"b\" é & <c>\n"
    "</parameter>\n<parameter name=\"depth\" string=\"false\">[1, {\"x\": 2}]</parameter>\n</invoke>\n"
    "</tool_calls>";
constexpr const char* kInfill = "    größe = länge(x)\n    print(\"日本\")\n";
constexpr const char* kArguments = R"({"path":"a \"b\" é & <c>\n","depth":[1,{"x":2}]})";

/// Pieces of 1 to `longest` bytes, no two of them equal.
std::vector<std::string> cut(const std::string& text, size_t longest, std::mt19937& random,
                             std::set<std::string>& used) {
  std::vector<std::string> pieces;
  for (size_t begin = 0; begin < text.size();) {
    size_t length = 1 + random() % longest;
    while (used.contains(text.substr(begin, length)) && begin + length < text.size()) ++length;
    pieces.push_back(text.substr(begin, length));
    used.insert(pieces.back());
    begin += length;
  }
  return pieces;
}

class SuccessorTest : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    std::string folder = std::filesystem::temp_directory_path() / "ds4-successor-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    std::mt19937 random(static_cast<unsigned>(GetParam()));
    std::set<std::string> used;
    const auto reasoning = cut(kReasoning, GetParam(), random, used);
    const auto answer = cut(std::string(kText) + kBlock, GetParam(), random, used);
    const auto infill = cut(kInfill, GetParam(), random, used);
    ASSERT_LE(reasoning.size() + answer.size() + infill.size(), testing::most_successor_pieces);
    infill_pieces_ = infill.size();
    pieces_ = reasoning.size() + 1 + answer.size();
    EngineOptions options;
    options.model_path = folder + "/model.gguf";
    options.backend = BackendChoice::cpu;
    options.threads = 1;
    testing::must(testing::write_successor_model(options.model_path, reasoning, answer, infill));
    engine_.emplace(testing::must(Engine::open(options)));
    SchedulerOptions scheduling;
    scheduling.pool.context = 4096;
    scheduler_.emplace(*engine_,
                       ServerInfo{.model_id = "successor", .default_max_tokens = 1000, .infill = true},
                       scheduling, metrics_);
    routes_.emplace(*scheduler_);
    http::ServerOptions http;
    http.port = 0;
    server_ = testing::must(
        http::Server::start(http, [this](http::Request request, std::shared_ptr<http::Exchange> exchange) {
          routes_->handle(request, std::move(exchange));
        }));
  }
  void TearDown() override {
    if (server_) server_->stop();
    std::filesystem::remove_all(folder_);
  }

  std::string post(const std::string& path, const json::object& body) {
    http::TestClient client(server_->port());
    const std::string text = json::serialize(body);
    client.send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(text.size()) + "\r\n\r\n" + text);
    const http::ClientResponse response = client.response();
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_TRUE(response.complete);
    return response.body;
  }

  static std::string text_at(const json::value& value, const char* pointer) {
    boost::system::error_code error;
    const json::value* found = value.find_pointer(pointer, error);
    return found != nullptr && found->is_string() ? std::string(found->as_string()) : "";
  }

  static json::object request(bool stream) {
    return {{"model", "m"},
            {"stream", stream},
            {"max_tokens", 1000},
            {"messages", {{{"role", "user"}, {"content", "go"}}}}};
  }

  std::filesystem::path folder_;
  size_t pieces_ = 0;  // tokens of a reply
  size_t infill_pieces_ = 0;
  std::optional<Engine> engine_;
  Metrics metrics_;
  std::optional<Scheduler> scheduler_;
  std::optional<api::Routes> routes_;
  std::unique_ptr<http::Server> server_;
};

const json::array kChatTools{
    {{"type", "function"}, {"function", {{"name", "look"}, {"parameters", {{"type", "object"}}}}}}};

TEST_P(SuccessorTest, ChatCompletions) {
  json::object body = request(false);
  body["tools"] = kChatTools;
  const json::value whole = json::parse(post("/v1/chat/completions", body));
  const json::value& choice = whole.at_pointer("/choices/0");
  EXPECT_EQ(text_at(choice, "/finish_reason"), "tool_calls");
  EXPECT_EQ(text_at(choice, "/message/reasoning_content"), kReasoning);
  EXPECT_EQ(text_at(choice, "/message/content"), kText);
  EXPECT_EQ(text_at(choice, "/message/tool_calls/0/function/name"), "look");
  EXPECT_EQ(text_at(choice, "/message/tool_calls/0/function/arguments"), kArguments);
  EXPECT_EQ(whole.at_pointer("/usage/completion_tokens").to_number<size_t>(), pieces_);

  body["stream"] = true;
  std::string reasoning, content, arguments;
  const std::string stream = post("/v1/chat/completions", body);
  for (size_t at = stream.find("data: {"); at != std::string::npos; at = stream.find("data: {", at + 1)) {
    const std::string line = stream.substr(at + 6, stream.find('\n', at) - at - 6);
    const json::value event = json::parse(line);
    const json::object& delta = event.at_pointer("/choices/0/delta").as_object();
    if (const auto* text = delta.if_contains("reasoning_content")) reasoning += text->as_string();
    if (const auto* text = delta.if_contains("content")) content += text->as_string();
    if (const auto* calls = delta.if_contains("tool_calls")) {
      arguments += calls->at_pointer("/0/function/arguments").as_string();
    }
  }
  EXPECT_EQ(reasoning, kReasoning);
  EXPECT_EQ(content, kText);
  EXPECT_EQ(arguments, kArguments);
}

// Without tools markup is text.
TEST_P(SuccessorTest, WithoutTools) {
  const json::value whole = json::parse(post("/v1/chat/completions", request(false)));
  EXPECT_EQ(text_at(whole, "/choices/0/message/content"), std::string(kText) + kBlock);
  EXPECT_EQ(text_at(whole, "/choices/0/finish_reason"), "stop");
}

TEST_P(SuccessorTest, Messages) {
  json::object body = request(false);
  body["tools"] = json::array{{{"name", "look"}, {"input_schema", {{"type", "object"}}}}};
  const json::value whole = json::parse(post("/v1/messages", body));
  EXPECT_EQ(text_at(whole, "/stop_reason"), "tool_use");
  EXPECT_EQ(text_at(whole, "/content/0/thinking"), kReasoning);
  EXPECT_EQ(text_at(whole, "/content/1/text"), kText);
  EXPECT_EQ(whole.at_pointer("/content/2/input"), json::parse(kArguments));
  EXPECT_EQ(whole.at_pointer("/usage/output_tokens").to_number<size_t>(), pieces_);
}

TEST_P(SuccessorTest, Responses) {
  json::object body{{"model", "m"}, {"input", "go"}, {"max_output_tokens", 1000}};
  body["tools"] = json::array{{{"type", "function"}, {"name", "look"}, {"parameters", {{"type", "object"}}}}};
  const json::value whole = json::parse(post("/v1/responses", body));
  const json::array& output = whole.at("output").as_array();
  ASSERT_GE(output.size(), 2u);
  EXPECT_EQ(text_at(output[output.size() - 2], "/content/0/text"), kText);
  EXPECT_EQ(text_at(output.back(), "/type"), "function_call");
  EXPECT_EQ(text_at(output.back(), "/arguments"), kArguments);
}

// What an editor asks for: the text between two others.
TEST_P(SuccessorTest, Infill) {
  const std::string before = "def f(x):<｜fim▁hole｜>\n", behind = "    return größe\n";
  json::object body{{"model", "m"}, {"prompt", before}, {"suffix", behind}, {"max_tokens", 1000}};
  const json::value whole = json::parse(post("/v1/completions", body));
  EXPECT_EQ(text_at(whole, "/object"), "text_completion");
  EXPECT_EQ(text_at(whole, "/choices/0/text"), kInfill);
  EXPECT_EQ(text_at(whole, "/choices/0/finish_reason"), "stop");
  EXPECT_EQ(whole.at_pointer("/usage/completion_tokens").to_number<size_t>(), infill_pieces_);
  // What the user typed is text, whatever it spells: four special tokens, and tokens of bytes.
  const Tokenizer& tokenizer = engine_->tokenizer();
  EXPECT_EQ(whole.at_pointer("/usage/prompt_tokens").to_number<size_t>(),
            4 + tokenizer.encode_plain(before).size() + tokenizer.encode_plain(behind).size());

  body["stream"] = true;
  const std::string stream = post("/v1/completions", body);
  std::string text;
  for (size_t at = stream.find("data: {"); at != std::string::npos; at = stream.find("data: {", at + 1)) {
    text += text_at(json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6)), "/choices/0/text");
  }
  EXPECT_EQ(text, kInfill);
}

// The conversation goes on as if nothing had been.
TEST_P(SuccessorTest, InfillBesideAConversation) {
  const json::value first = json::parse(post("/v1/chat/completions", request(false)));
  for (const char* letter : {"a", "b", "c"}) {
    post("/v1/completions", {{"prompt", letter}, {"suffix", "b"}, {"max_tokens", 1000}});
  }
  const json::value again = json::parse(post("/v1/chat/completions", request(false)));
  EXPECT_EQ(again.at_pointer("/usage/prompt_tokens_details/cached_tokens"),
            first.at_pointer("/usage/prompt_tokens"));
}

// The client sends the call back in its own way; only the result is computed.
TEST_P(SuccessorTest, TheNextTurnIsWarm) {
  json::object body = request(false);
  body["tools"] = kChatTools;
  const json::value first = json::parse(post("/v1/chat/completions", body));
  json::object message = first.at_pointer("/choices/0/message").as_object();
  message.erase("reasoning_content");
  const std::string id(message.at("tool_calls").at_pointer("/0/id").as_string());
  message["tool_calls"].as_array()[0].at("function").as_object()["arguments"] =
      R"({ "depth" : [ 1, {"x":2} ], "path" : "a \"b\" \u00e9 & <c>\n" })";
  body["messages"].as_array().push_back(message);
  body["messages"].as_array().push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", "found"}});
  const json::value second = json::parse(post("/v1/chat/completions", body));
  EXPECT_EQ(second.at_pointer("/usage/prompt_tokens_details/cached_tokens").to_number<size_t>(),
            first.at_pointer("/usage/total_tokens").to_number<size_t>());
}

INSTANTIATE_TEST_SUITE_P(PiecesOfBytes, SuccessorTest, ::testing::Values(2, 7, 40),
                         [](const auto& values) { return std::to_string(values.param); });

}  // namespace
}  // namespace ds4::server
