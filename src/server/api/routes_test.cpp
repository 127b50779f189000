#include "server/api/routes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/test_api.hpp"

namespace ds4::server::api {
namespace {

class RoutesTest : public testing::Test {
 protected:
  http::Response ask(const std::string& method, const std::string& path, const std::string& body = "") {
    http::Request request;
    request.method = method;
    request.path = path;
    request.body = body;
    auto exchange = std::make_shared<FakeExchange>();
    Routes(generator_, [] { return std::string("up 1\n"); }).handle(request, exchange);
    EXPECT_LE(exchange->responses, 1);
    return exchange->response;
  }
  FakeGenerator generator_;
};

TEST_F(RoutesTest, FindsEndpoints) {
  const std::string chat = R"({"messages":[{"content":"Hi"}]})";
  int submitted = 0;
  for (const char* path : {"/v1/chat/completions", "/chat/completions", "/v1/chat/completions/"}) {
    ask("POST", path, chat);
    EXPECT_EQ(generator_.submitted, ++submitted) << path;
    EXPECT_EQ(generator_.request.kind, GenerationRequest::Kind::chat);
  }
  ask("POST", "/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(generator_.request.kind, GenerationRequest::Kind::completion);
  for (const char* path : {"/v1/messages", "/messages"}) {
    ask("POST", path, chat);
    EXPECT_EQ(generator_.request.tool_id_prefix, "toolu_");
    generator_.request = {};
  }
  generator_.counted.prompt_tokens = 3;
  EXPECT_EQ(ask("POST", "/v1/messages/count_tokens", chat).body, "{\"input_tokens\":3}\n");
  EXPECT_EQ(ask("GET", "/health").body, "{\"status\":\"ok\"}\n");
  EXPECT_EQ(ask("GET", "/metrics").body, "up 1\n");
  EXPECT_THAT(ask("GET", "/metrics").content_type, testing::StartsWith("text/plain; version=0.0.4"));
}

TEST_F(RoutesTest, Responses) {
  const Routes routes(generator_);
  const auto ask_same = [&](const char* method, const std::string& path, const char* body = "") {
    http::Request request;
    request.method = method;
    request.path = path;
    request.body = body;
    auto exchange = std::make_shared<FakeExchange>();
    routes.handle(request, exchange);
    return exchange->response;
  };
  generator_.script = {text_event(GenerationEvent::Kind::content, "b"), done_event({})};
  const std::string first = ask_same("POST", "/v1/responses", R"({"input":"a"})").body;
  const std::string id = first.substr(7, first.find('"', 7) - 7);
  EXPECT_EQ(ask_same("GET", "/v1/responses/" + id).body, first);
  ask_same("POST", "/responses", ("{\"input\":\"c\",\"previous_response_id\":\"" + id + "\"}").c_str());
  EXPECT_EQ(generator_.request.messages.size(), 3u);
  EXPECT_EQ(ask_same("PUT", "/v1/responses/" + id).status, 405);
  EXPECT_EQ(ask_same("DELETE", "/v1/responses/" + id).body,
            "{\"id\":\"" + id + "\",\"object\":\"response\",\"deleted\":true}");
  EXPECT_EQ(ask_same("GET", "/v1/responses/" + id).status, 404);
  EXPECT_EQ(ask_same("DELETE", "/v1/responses/" + id).status, 404);
  const std::string unkept = ask_same("POST", "/v1/responses", R"({"input":"a","store":false})").body;
  EXPECT_EQ(ask_same("GET", "/v1/responses/" + unkept.substr(7, unkept.find('"', 7) - 7)).status, 404);
}

TEST_F(RoutesTest, UnknownPaths) {
  for (const char* path : {"/", "", "/v1", "/v1/", "/v1/embeddings", "/v1/chat", "/v2/models", "/healthy"}) {
    const http::Response response = ask("GET", path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_EQ(response.body,
              "{\"error\":{\"message\":\"unknown endpoint\",\"type\":\"invalid_request_error\"}}\n");
  }
  http::Request request;
  request.method = "GET";
  request.path = "/metrics";
  auto exchange = std::make_shared<FakeExchange>();
  Routes(generator_).handle(request, exchange);
  EXPECT_EQ(exchange->response.status, 404);
}

TEST_F(RoutesTest, WrongMethods) {
  http::Response response = ask("GET", "/v1/chat/completions");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(response.headers, (http::HeaderList{{"Allow", "POST, OPTIONS"}}));
  EXPECT_EQ(
      response.body,
      "{\"error\":{\"message\":\"this endpoint takes POST only\",\"type\":\"invalid_request_error\"}}\n");
  for (const char* path : {"/v1/models", "/v1/models/x", "/health", "/metrics"}) {
    response = ask("POST", path);
    EXPECT_EQ(response.status, 405) << path;
    EXPECT_EQ(response.headers, (http::HeaderList{{"Allow", "GET, HEAD, OPTIONS"}}));
  }
}

TEST_F(RoutesTest, InlineAnswers) {
  http::Request request;
  request.method = "GET";
  request.path = "/health";
  EXPECT_TRUE(Routes::answer_inline(request));
  request.path = "/v1/models";
  EXPECT_FALSE(Routes::answer_inline(request));
  request.path = "/health";
  request.method = "POST";
  EXPECT_FALSE(Routes::answer_inline(request));
}

const char kModel[] =
    "\"object\":\"model\",\"created\":1767225600,\"owned_by\":\"ds4\",\"name\":\"DeepSeek V4 "
    "Flash\",\"context_length\":"
    "32768,\"context_window\":32768,\"max_context_length\":32768,\"max_model_len\":32768,\"max_input_"
    "tokens\":32768,"
    "\"max_output_tokens\":8192,\"max_completion_tokens\":8192,\"max_tokens\":8192,\"top_provider\":{"
    "\"context_length\":"
    "32768,\"max_completion_tokens\":8192,\"is_moderated\":false},\"supported_parameters\":[\"tools\",\"tool_"
    "choice\","
    "\"parallel_tool_calls\",\"max_tokens\",\"max_completion_tokens\",\"temperature\",\"top_p\",\"top_k\","
    "\"min_p\","
    "\"stop\",\"seed\",\"n\",\"stream\",\"logprobs\",\"top_logprobs\",\"response_format\",\"structured_"
    "outputs\","
    "\"reasoning\",\"reasoning_effort\"],\"architecture\":{\"modality\":\"text->text\",\"input_modalities\":["
    "\"text\"],"
    "\"output_modalities\":[\"text\"]},\"capabilities\":{\"completion\":true,\"chat\":true,\"tools\":true,"
    "\"reasoning\":"
    "true,\"structured_outputs\":true,\"infill\":true,\"vision\":false},\"type\":\"model\",\"display_name\":"
    "\"DeepSeek V4 Flash\",\"created_at\":\"2026-01-01T00:00:00Z\"}";

TEST_F(RoutesTest, Models) {
  const std::string model = std::string("{\"id\":\"deepseek-v4-flash\",").append(kModel);
  EXPECT_EQ(
      ask("GET", "/v1/models").body,
      "{\"object\":\"list\",\"data\":[" + model +
          "],\"has_more\":false,\"first_id\":\"deepseek-v4-flash\",\"last_id\":\"deepseek-v4-flash\"}\n");
  EXPECT_EQ(ask("GET", "/v1/models/deepseek-v4-flash").body, model + "\n");
  EXPECT_EQ(ask("GET", "/models/deepseek-chat/").body,
            std::string("{\"id\":\"deepseek-chat\",").append(kModel) + "\n");
  const http::Response response = ask("GET", "/v1/models/gpt-x");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.body,
            "{\"error\":{\"message\":\"the model \\\"gpt-x\\\" does not exist; this server has "
            "deepseek-v4-flash\",\"type\":"
            "\"invalid_request_error\",\"param\":\"model\",\"code\":\"model_not_found\"}}\n");
}

TEST_F(RoutesTest, TheAnswerIsNeverLongerThanTheContext) {
  generator_.server.default_max_tokens = 393216;
  EXPECT_THAT(ask("GET", "/v1/models").body, testing::HasSubstr("\"max_output_tokens\":32768,"));
}

TEST_F(RoutesTest, Props) {
  EXPECT_EQ(
      ask("GET", "/props").body,
      "{\"default_generation_settings\":{\"temperature\":1,\"top_k\":0,\"top_p\":1,\"min_p\":0.05,\"max_"
      "tokens\":8192,"
      "\"thinking\":\"high\",\"effort_profile\":\"preview\",\"n_ctx\":32768},\"model\":\"deepseek-v4-flash\","
      "\"model_name\":\"DeepSeek V4 Flash\",\"context_length\":32768,\"n_ctx\":32768,\"vocabulary_size\":" +
          std::to_string(generator_.tokenizer().vocabulary_size()) +
          ",\"infill\":true,\"build_info\":\"ds4 0.1.0\"}\n");
}

TEST_F(RoutesTest, TokenizeAndBack) {
  const Tokenizer& tokenizer = generator_.tokenizer();
  const std::string text = "Hello w\xc3\xb6rld <\xEF\xBD\x9CUser\xEF\xBD\x9C>";
  std::string ids;
  for (const Token token : tokenizer.encode_plain(text))
    ids.append(ids.empty() ? "" : ",").append(std::to_string(token));
  for (const char* name : {"content", "text", "prompt"}) {
    EXPECT_EQ(ask("POST", "/tokenize", "{\"" + std::string(name) + "\":\"" + text + "\"}").body,
              "{\"tokens\":[" + ids + "]}\n");
  }
  EXPECT_EQ(ask("POST", "/tokenize", R"({"content":"","add_special":true})").body,
            "{\"tokens\":[" + std::to_string(tokenizer.special().bos) + "]}\n");
  EXPECT_EQ(ask("POST", "/detokenize", "{\"tokens\":[" + ids + "]}").body,
            "{\"content\":\"" + text + "\"}\n");
  EXPECT_EQ(ask("POST", "/detokenize", R"({"tokens":[]})").body, "{\"content\":\"\"}\n");
}

TEST_F(RoutesTest, TokenizeWithPieces) {
  const Tokenizer& tokenizer = generator_.tokenizer();
  const Token part = tokenizer.encode_plain("\xf0\x9f\xa6\x86").front();
  ASSERT_EQ(tokenizer.decode(part).front(), '\xf0');
  const std::string body =
      ask("POST", "/tokenize", "{\"content\":\"\xf0\x9f\xa6\x86\",\"with_pieces\":true}").body;
  EXPECT_THAT(body, testing::StartsWith("{\"tokens\":[{\"id\":" + std::to_string(part) + ",\"piece\":[240"));
  const Token letter = tokenizer.encode_plain("a").front();
  EXPECT_EQ(ask("POST", "/tokenize", R"({"content":"a","with_pieces":true})").body,
            "{\"tokens\":[{\"id\":" + std::to_string(letter) + ",\"piece\":\"a\"}]}\n");
}

TEST_F(RoutesTest, TokenizeRefusals) {
  EXPECT_THAT(ask("POST", "/tokenize", "{}").body, testing::HasSubstr("missing content"));
  EXPECT_THAT(ask("POST", "/tokenize", R"({"content":1})").body,
              testing::HasSubstr("content must be a string"));
  EXPECT_THAT(ask("POST", "/tokenize", R"({"content":"a","parse_special":true})").body,
              testing::HasSubstr("parse_special is not supported"));
  EXPECT_EQ(ask("POST", "/tokenize", "x").status, 400);
  EXPECT_THAT(ask("POST", "/detokenize", "{}").body, testing::HasSubstr("missing tokens"));
  for (const char* token : {"-1", "1000000000", "99999999999", "1.5", "\"a\"", "[]"}) {
    const http::Response response = ask("POST", "/detokenize", "{\"tokens\":[5," + std::string(token) + "]}");
    EXPECT_EQ(response.status, 400) << token;
    EXPECT_THAT(response.body, testing::HasSubstr("tokens[1] is not a token of the vocabulary"));
  }
}

}  // namespace
}  // namespace ds4::server::api
