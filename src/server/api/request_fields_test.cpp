#include "server/api/request_fields.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::server::api {
namespace {

class RequestFields : public testing::Test {
 protected:
  Fields fields(std::string text) {
    text_ = std::move(text);
    errors_ = FieldErrors();
    return {JsonValue(text_), "", errors_};
  }
  std::string refused(std::string text) {
    refuse_unsupported(fields(std::move(text)));
    return errors_ ? errors_.first().param : "";
  }
  std::string text_;
  FieldErrors errors_;
};

TEST_F(RequestFields, Sampling) {
  GenerationRequest request;
  read_sampling(fields(R"({"temperature":0,"top_p":0.5,"min_p":0,"top_k":-1,"seed":18446744073709551615})"),
                request);
  EXPECT_FALSE(errors_);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.top_p, 0.5F);
  EXPECT_EQ(request.sampling.min_p, 0);
  EXPECT_EQ(request.sampling.top_k, -1);
  EXPECT_EQ(request.seed, 18446744073709551615U);
  for (const char* any : {R"({"seed":-1})", R"({"seed":0})", R"({"seed":-0.0})"}) {
    GenerationRequest other;
    read_sampling(fields(any), other);
    EXPECT_FALSE(other.seed) << any;
  }
  EXPECT_FALSE(errors_);
  GenerationRequest defaults;
  read_sampling(fields(R"({"temperature":null})"), defaults);
  EXPECT_EQ(defaults.sampling.temperature, 1);
  EXPECT_EQ(defaults.sampling.min_p, 0.05F);
  EXPECT_FALSE(defaults.seed);
}

TEST_F(RequestFields, SamplingRanges) {
  for (const char* body :
       {R"({"temperature":-0.1})", R"({"temperature":101})", R"({"temperature":"1"})", R"({"top_p":1.1})",
        R"({"min_p":-1})", R"({"top_k":1025})", R"({"top_k":1.5})", R"({"seed":1.5})", R"({"seed":"a"})"}) {
    GenerationRequest request;
    const Fields body_fields = fields(body);
    read_sampling(body_fields, request);
    ASSERT_TRUE(errors_) << body;
    EXPECT_TRUE(body_fields.has(errors_.first().param)) << body;
  }
}

TEST_F(RequestFields, Stops) {
  EXPECT_THAT(read_stop(fields(R"({"stop":"a"})"), "stop"), testing::ElementsAre("a"));
  EXPECT_THAT(read_stop(fields(R"({"stop":["a","","b"]})"), "stop"), testing::ElementsAre("a", "b"));
  EXPECT_THAT(read_stop(fields(R"({"stop":null})"), "stop"), testing::IsEmpty());
  EXPECT_FALSE(errors_);
  for (const char* body : {R"({"stop":1})", R"({"stop":["a",1]})"}) {
    read_stop(fields(body), "stop");
    EXPECT_TRUE(errors_) << body;
  }
  std::string many = R"({"stop":["a")";
  for (int i = 0; i < 64; ++i) many += ",\"b\"";
  read_stop(fields(many + "]}"), "stop");
  EXPECT_TRUE(errors_);
  read_stop(fields("{\"stop\":\"" + std::string(4096, 'x') + "\"}"), "stop");
  EXPECT_FALSE(errors_);
  read_stop(fields("{\"stop\":[\"a\",\"" + std::string(4097, 'x') + "\"]}"), "stop");
  EXPECT_EQ(errors_.first().code, "invalid_value");
}

TEST_F(RequestFields, TheLastTokenLimitCounts) {
  const auto read = [&](const char* body) {
    return read_max_tokens(fields(body), {"max_tokens", "max_completion_tokens"});
  };
  EXPECT_EQ(read(R"({"max_tokens":1,"max_completion_tokens":2})"), 2u);
  EXPECT_EQ(read(R"({"max_completion_tokens":2,"max_tokens":1})"), 1u);
  EXPECT_EQ(read(R"({"max_completion_tokens":2,"max_tokens":null})"), 2u);
  EXPECT_EQ(read("{}"), std::nullopt);
  EXPECT_EQ(read(R"({"max_tokens":0})"), 0u);
  EXPECT_FALSE(errors_);
  read(R"({"max_tokens":-1})");
  EXPECT_EQ(errors_.first().param, "max_tokens");
}

TEST_F(RequestFields, UnsupportedFieldsAreRefusedByName) {
  for (const char* name :
       {"frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens", "mirostat"}) {
    EXPECT_EQ(refused("{\"" + std::string(name) + "\":0.5}"), name);
  }
  EXPECT_EQ(refused(R"({"logit_bias":{"5":1}})"), "logit_bias");
  EXPECT_EQ(refused(R"({"best_of":2})"), "best_of");
  EXPECT_EQ(refused(R"({"best_of":3,"n":2})"), "best_of");
  EXPECT_EQ(refused(R"({"best_of":2,"n":2})"), "");
  EXPECT_EQ(refused(R"({"audio":{"voice":"x"}})"), "audio");
  EXPECT_EQ(refused(R"({"modalities":["text","audio"]})"), "modalities");
  EXPECT_EQ(refused(R"({"grammar":"root ::= x"})"), "grammar");
  EXPECT_EQ(refused(R"({"ignore_eos":true})"), "ignore_eos");
  EXPECT_EQ(refused(R"({"add_generation_prompt":false})"), "add_generation_prompt");
  EXPECT_EQ(refused(R"({"frequency_penalty":"x"})"), "frequency_penalty");
  EXPECT_EQ(refused(R"({"n_predict":64})"), "n_predict");
  EXPECT_EQ(refused(R"({"mcp_servers":[{"type":"url","url":"https://example.com","name":"m"}]})"),
            "mcp_servers");
  EXPECT_EQ(refused(R"({"chat_template":"{{ messages }}"})"), "chat_template");
  EXPECT_EQ(refused(R"({"include_stop_str_in_output":true})"), "include_stop_str_in_output");
  EXPECT_EQ(refused(R"({"prompt_logprobs":0})"), "prompt_logprobs");
  EXPECT_EQ(refused(R"({"truncate_prompt_tokens":100})"), "truncate_prompt_tokens");
  EXPECT_EQ(refused(R"({"regex":"a+"})"), "regex");
  EXPECT_EQ(refused(R"({"n_probs":5})"), "n_probs");
}

TEST_F(RequestFields, NeutralValuesAndHarmlessFieldsAreAccepted) {
  EXPECT_EQ(
      refused(
          R"({"frequency_penalty":0,"presence_penalty":0.0,"repetition_penalty":1,"logit_bias":{ },"audio":null,
                        "modalities":["text"],"grammar":"","stop_token_ids":[ ],"ignore_eos":false,"user":"u","metadata":{"a":"b"},
                        "store":true,"service_tier":"auto","prediction":{"type":"content"},"unknown":[1],
                        "n_predict":-1,"mcp_servers":[],"verbosity":"low","chat_template":null,
                        "include_stop_str_in_output":false,"prompt_logprobs":null,"n_probs":0})"),
      "");
}

TEST_F(RequestFields, ConversationHint) {
  http::Request request;
  EXPECT_EQ(conversation_hint(fields("{}"), request), "");
  EXPECT_EQ(conversation_hint(fields(R"({"user":"u"})"), request), "u");
  EXPECT_EQ(conversation_hint(fields(R"({"user":"u","safety_identifier":"s"})"), request), "s");
  request.headers = {{"Session_Id", "h"}};
  EXPECT_EQ(conversation_hint(fields(R"({"user":"u"})"), request), "h");
  EXPECT_EQ(conversation_hint(fields(R"({"user":"u","prompt_cache_key":"k"})"), request), "k");
  EXPECT_EQ(conversation_hint(fields(R"({"user":["u"]})"), http::Request()), "");
  EXPECT_EQ(conversation_hint(fields("{\"user\":\"" + std::string(300, 'u') + "\"}"), http::Request()).size(),
            256u);
}

TEST_F(RequestFields, TextContent) {
  const auto read = [&](std::string_view content) {
    errors_ = FieldErrors();
    return read_text_content(JsonValue(content), "messages[0].content", errors_);
  };
  EXPECT_EQ(read("null"), "");
  EXPECT_EQ(read(R"("a")"), "a");
  EXPECT_EQ(
      read(
          R"(["a",{"type":"text","text":"b","cache_control":{}},{"text":"c"},{"type":"input_text","text":"d"},
                    {"type":"refusal","refusal":"e"},{"type":"text","text":null}])"),
      "abcde");
  EXPECT_FALSE(errors_);
  read(R"(["a",{"type":"image_url","image_url":{"url":"x"}}])");
  EXPECT_EQ(errors_.first().param, "messages[0].content[1]");
  EXPECT_EQ(errors_.first().message, "messages[0].content[1]: content of type image_url is not supported");
  read("5");
  EXPECT_EQ(errors_.first().message, "messages[0].content must be a string or an array of parts");
  read("[5]");
  EXPECT_EQ(errors_.first().param, "messages[0].content[0]");
}

TEST_F(RequestFields, ReasoningAmongTheParts) {
  constexpr const char* kParts =
      R"([{"type":"thinking","thinking":[{"type":"text","text":"a"}]},{"type":"reasoning","reasoning":"b"},
          {"type":"redacted_thinking","data":"x"},{"type":"text","text":"c"}])";
  std::string reasoning;
  EXPECT_EQ(read_text_content(JsonValue(kParts), "content", errors_, &reasoning), "c");
  EXPECT_EQ(reasoning, "ab");
  EXPECT_FALSE(errors_);
  read_text_content(JsonValue(kParts), "content", errors_);
  EXPECT_EQ(errors_.first().param, "content[0]");
}

TEST_F(RequestFields, ReasoningText) {
  EXPECT_EQ(read_reasoning_text(fields(R"({"reasoning_content":"a","reasoning":"b"})")), "a");
  EXPECT_EQ(read_reasoning_text(fields(R"({"reasoning_content":"","reasoning":"b"})")), "b");
  EXPECT_EQ(
      read_reasoning_text(fields(R"({"reasoning_content":null,"thinking":[{"type":"text","text":"c"}]})")),
      "c");
  EXPECT_EQ(read_reasoning_text(fields(R"({"reasoning":{"id":1},"thinking":[5]})")), "");
  EXPECT_FALSE(errors_);
}

}  // namespace
}  // namespace ds4::server::api
