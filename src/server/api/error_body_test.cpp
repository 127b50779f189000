#include "server/api/error_body.hpp"

#include <gtest/gtest.h>

#include <set>

#include "server/api/ids.hpp"
#include "server/api/test_api.hpp"

namespace ds4::server::api {
namespace {

TEST(ErrorBody, OverflowOfEachApi) {
  const RequestError error = context_overflow(40000, 32768, "messages");
  const http::Response openai = openai_error_response(error);
  EXPECT_EQ(openai.status, 400);
  EXPECT_EQ(openai.body,
            "{\"error\":{\"message\":\"Prompt has 40000 tokens, but the configured context size is 32768 "
            "tokens (prompt is too long: 40000 tokens > 32768 "
            "maximum)\",\"type\":\"invalid_request_error\",\"param\":\"messages\",\"code\":\"context_length_"
            "exceeded\","
            "\"n_prompt_tokens\":40000,\"n_ctx\":32768}}\n");
  EXPECT_EQ(
      anthropic_error_response(error).body,
      "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"Prompt has 40000 "
      "tokens, "
      "but the configured context size is 32768 tokens (prompt is too long: 40000 tokens > 32768 "
      "maximum)\",\"n_prompt_tokens\":40000,\"n_ctx\":32768}}\n");
}

TEST(ErrorBody, PlainErrors) {
  RequestError error;
  error.message = "unknown endpoint";
  EXPECT_EQ(openai_error(error),
            R"({"error":{"message":"unknown endpoint","type":"invalid_request_error"}})");
  error.message.clear();
  EXPECT_EQ(openai_error(error),
            R"({"error":{"message":"internal server error","type":"invalid_request_error"}})");
}

TEST(ErrorBody, BusyAnswersSayWhenToTryAgain) {
  RequestError error;
  error.status = 429;
  const http::HeaderList expected = {{"Retry-After", "2"}};
  EXPECT_EQ(openai_error_response(error).headers, expected);
  EXPECT_EQ(anthropic_error_response(error).headers, expected);
  error.status = 400;
  EXPECT_TRUE(openai_error_response(error).headers.empty());
}

TEST(ErrorBody, AnthropicTypesFollowTheStatus) {
  const std::pair<int, const char*> cases[] = {{400, "invalid_request_error"},
                                               {401, "authentication_error"},
                                               {403, "permission_error"},
                                               {404, "not_found_error"},
                                               {413, "request_too_large"},
                                               {429, "rate_limit_error"},
                                               {500, "api_error"},
                                               {503, "overloaded_error"},
                                               {529, "overloaded_error"}};
  for (const auto& [status, type] : cases) {
    EXPECT_EQ(error_body_for_path("/v1/messages", status, "m"),
              std::string("{\"type\":\"error\",\"error\":{\"type\":\"") + type + "\",\"message\":\"m\"}}\n");
  }
}

TEST(ErrorBody, ShapeFollowsThePath) {
  const std::string openai = "{\"error\":{\"message\":\"m\",\"type\":\"server_error\"}}\n";
  for (const char* path : {"", "/", "/v1/chat/completions", "/v1/messagesx", "/messagesx"}) {
    EXPECT_EQ(error_body_for_path(path, 500, "m"), openai) << path;
  }
  for (const char* path : {"/v1/messages", "/v1/messages/", "/v1/messages/count_tokens", "/messages"}) {
    EXPECT_TRUE(error_body_for_path(path, 500, "m").starts_with("{\"type\":\"error\"")) << path;
  }
  EXPECT_EQ(error_body_for_path("/", 401, "m"),
            "{\"error\":{\"message\":\"m\",\"type\":\"authentication_error\"}}\n");
}

TEST(RandomId, HasItsLengthAndDiffers) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string id = random_id("call_", 32);
    EXPECT_EQ(id.size(), 37u);
    EXPECT_EQ(id.substr(0, 5), "call_");
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 5), std::string::npos);
    EXPECT_TRUE(seen.insert(id).second);
  }
}

}  // namespace
}  // namespace ds4::server::api
