#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/openai_chat.hpp"
#include "server/api/test_api.hpp"
#include "server/api/test_messages.hpp"

namespace ds4::server::api {
namespace {

class ChatRequestTest : public testing::Test {
 protected:
  /// Members of a body beside a message of a user.
  ChatRequest read(const std::string& members) {
    return read_body("{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]" +
                     (members.empty() ? "" : "," + members) + "}");
  }
  ChatRequest read_messages(const std::string& messages) {
    return read_body("{\"messages\":" + messages + "}");
  }
  ChatRequest read_body(const std::string& body) {
    errors_ = FieldErrors();
    request_.body = body;
    ChatRequest chat = read_chat_request(request_, FakeGenerator().server, errors_);
    if (errors_) chat = {};
    return chat;
  }
  /// "param: message" of the refusal, or nothing.
  std::string refused(const std::string& members) {
    read(members);
    return complaint();
  }
  std::string refused_messages(const std::string& messages) {
    read_messages(messages);
    return complaint();
  }
  std::string complaint() const {
    return errors_ ? errors_.first().param + ": " + errors_.first().message : "";
  }

  http::Request request_;
  FieldErrors errors_;
};

TEST_F(ChatRequestTest, Defaults) {
  const ChatRequest chat = read("");
  ASSERT_EQ(complaint(), "");
  const GenerationRequest& request = chat.generation;
  EXPECT_FALSE(chat.stream);
  EXPECT_FALSE(chat.include_usage);
  EXPECT_EQ(request.kind, GenerationRequest::Kind::chat);
  EXPECT_EQ(request.model, "deepseek-v4-flash");
  ASSERT_EQ(request.messages.size(), 1u);
  EXPECT_EQ(request.messages[0].role, Role::user);
  EXPECT_EQ(request.messages[0].content, "Hi");
  EXPECT_EQ(request.tool_choice, ToolChoice::automatic);
  EXPECT_TRUE(request.parallel_tool_calls);
  EXPECT_EQ(request.tool_id_prefix, "call_");
  EXPECT_EQ(request.thinking.mode, ThinkMode::high);
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.choices, 1u);
  EXPECT_FALSE(request.logprobs);
  EXPECT_FALSE(request.side);
  EXPECT_EQ(request.body, request_.body);
}

TEST_F(ChatRequestTest, EveryField) {
  request_.headers = {{"x-session-id", "s"}};
  const ChatRequest chat = read(
      R"("model":"m","stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"top_p":0.9,"top_k":5,)"
      R"("min_p":0.1,"seed":7,"max_tokens":3,"max_completion_tokens":4,"stop":["x"],"n":3,"logprobs":true,)"
      R"("top_logprobs":20,"reasoning_effort":"max","parallel_tool_calls":false,"user":"u","metadata":{},"store":false)");
  ASSERT_EQ(complaint(), "");
  const GenerationRequest& request = chat.generation;
  EXPECT_TRUE(chat.stream);
  EXPECT_TRUE(chat.include_usage);
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.seed, 7u);
  EXPECT_EQ(request.max_tokens, 4u);
  EXPECT_THAT(request.stop, testing::ElementsAre("x"));
  EXPECT_EQ(request.choices, 3u);
  EXPECT_TRUE(request.logprobs);
  EXPECT_EQ(request.top_logprobs, 20u);
  EXPECT_EQ(request.thinking.mode, ThinkMode::max);
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_EQ(request.conversation, "s");
}

TEST_F(ChatRequestTest, Messages) {
  const auto messages = read_messages(R"([
      {"content":[{"type":"text","text":"a"}],"role":"system"}, {"role":"developer","content":"b"}, {"content":"c"},
      {"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[
        {"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}},
        {"id":"call_2","type":"function","function":{"name":"g","arguments":{ "y" : 2 }}},
        {"id":"call_3","type":"function","function":{"name":"h","arguments":""}}]},
      {"role":"tool","tool_call_id":"call_1","content":"one"}, {"role":"function","name":"f","content":"two"},
      {"role":"assistant","content":"done","tool_calls":null,"reasoning":null},
      {"role":"assistant","refusal":"no","function_call":{"name":"old","arguments":"{}"}}])")
                            .generation.messages;
  ASSERT_EQ(complaint(), "");
  ASSERT_EQ(messages.size(), 8u);
  EXPECT_EQ(messages[0].role, Role::system);
  EXPECT_EQ(messages[0].content, "a");
  EXPECT_EQ(messages[1].role, Role::developer);
  EXPECT_EQ(messages[2].role, Role::user);
  EXPECT_EQ(messages[3].content, "");
  EXPECT_EQ(messages[3].reasoning, "r");
  ASSERT_EQ(messages[3].tool_calls.size(), 3u);
  EXPECT_EQ(messages[3].tool_calls[0].id, "call_1");
  EXPECT_EQ(messages[3].tool_calls[0].name, "f");
  EXPECT_EQ(messages[3].tool_calls[0].arguments, "{\"x\": 1}");
  EXPECT_EQ(messages[3].tool_calls[1].arguments, "{ \"y\" : 2 }");
  EXPECT_EQ(messages[3].tool_calls[2].arguments, "{}");
  EXPECT_EQ(messages[4].role, Role::tool);
  EXPECT_EQ(messages[4].tool_call_id, "call_1");
  EXPECT_EQ(messages[5].role, Role::tool);
  EXPECT_EQ(messages[6].content, "done");
  EXPECT_EQ(messages[7].content, "no");
  EXPECT_EQ(messages[7].tool_calls[0].name, "old");
}

TEST_F(ChatRequestTest, MessagesThatMakeNoSense) {
  read_body("{}");
  EXPECT_EQ(complaint(), "messages: missing messages");
  read_body("{");
  EXPECT_EQ(complaint(), ": invalid JSON request: the body is not well-formed JSON");
  EXPECT_EQ(refused_messages("[]"), "messages: messages must not be empty");
  EXPECT_EQ(refused_messages(R"("Hi")"), "messages: messages must be an array");
  EXPECT_EQ(refused_messages(R"(["Hi"])"), "messages[0]: messages[0] must be an object");
  EXPECT_EQ(refused_messages(R"([{"role":"narrator"}])"),
            "messages[0].role: messages[0].role must be system, developer, user, assistant or tool");
  EXPECT_EQ(
      refused_messages(R"([{"content":"a"},{"content":[{"type":"text","text":"b"},{"type":"image_url"}]}])"),
      "messages[1].content[1]: messages[1].content[1]: content of type image_url is not supported");
  EXPECT_EQ(refused_messages(R"([{"content":7}])"),
            "messages[0].content: messages[0].content must be a string or an array of parts");
  EXPECT_EQ(refused_messages(R"([{"role":"assistant","tool_calls":[{"type":"function"}]}])"),
            "messages[0].tool_calls[0].function: messages[0].tool_calls[0].function must be given");
  EXPECT_EQ(refused_messages(R"([{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}])"),
            "messages[0].tool_calls[0].function.name: messages[0].tool_calls[0].function.name must be given");
  EXPECT_EQ(refused_messages(R"([{"role":"assistant","tool_calls":[{"type":"custom","custom":{}}]}])"),
            "messages[0].tool_calls[0].type: messages[0].tool_calls[0].type custom is not supported");
  EXPECT_EQ(refused_messages(R"([{"role":"assistant","content":"a","prefix":true}])"),
            "messages[0].prefix: messages[0].prefix is not supported");
}

TEST_F(ChatRequestTest, ToolsKeepTheirText) {
  const auto tools = read(R"("tools":[{"type":"function","function":{ "name" : "f",
        "parameters":{"type":"object", "properties":{"b":{}, "a":{}}} }},
        {"type":"function","name":"flat","parameters":{"type":"object"}}, {"name":"other","input_schema":{"type":"object"}},
        {"type":"function","function":{"name":"bare","parameters":null}}])")
                         .generation.tools;
  ASSERT_EQ(complaint(), "");
  ASSERT_EQ(tools.size(), 4u);
  EXPECT_EQ(tools[0].name, "f");
  EXPECT_EQ(tools[0].schema,
            "{ \"name\" : \"f\",\n        \"parameters\":{\"type\":\"object\", \"properties\":{\"b\":{}, "
            "\"a\":{}}} }");
  EXPECT_EQ(tools[0].parameters, R"({"type":"object", "properties":{"b":{}, "a":{}}})");
  EXPECT_EQ(tools[1].schema, R"({"type":"function","name":"flat","parameters":{"type":"object"}})");
  EXPECT_EQ(tools[2].parameters, R"({"type":"object"})");
  EXPECT_EQ(tools[3].parameters, "");
}

TEST_F(ChatRequestTest, ToolChoice) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":)";
  const std::pair<const char*, ToolChoice> cases[] = {{"null", ToolChoice::automatic},
                                                      {R"("auto")", ToolChoice::automatic},
                                                      {R"("none")", ToolChoice::none},
                                                      {R"("required")", ToolChoice::required}};
  for (const auto& [value, expected] : cases) {
    EXPECT_EQ(read(tools + value).generation.tool_choice, expected) << value;
    EXPECT_EQ(complaint(), "");
  }
  const auto named = read(tools + R"({"type":"function","function":{"name":"f"}})").generation;
  EXPECT_EQ(named.tool_choice, ToolChoice::named);
  EXPECT_EQ(named.tool_choice_name, "f");
  EXPECT_EQ(refused(tools + R"({"type":"function","function":{"name":"g"}})"),
            "tool_choice.function.name: tool_choice.function.name is not the name of a tool of this request");
  EXPECT_EQ(refused(tools + R"({"type":"allowed_tools","allowed_tools":{}})"),
            "tool_choice.type: tool_choice.type allowed_tools is not supported");
  EXPECT_EQ(refused(tools + R"("maybe")"),
            "tool_choice: tool_choice must be none, auto, required or a function");
  EXPECT_EQ(refused(tools + "1"), "tool_choice: tool_choice must be a string");
  EXPECT_EQ(refused(R"("tool_choice":"required")"), "tool_choice: tool_choice needs tools");
}

TEST_F(ChatRequestTest, ToolsThatMakeNoSense) {
  EXPECT_EQ(refused(R"("tools":{})"), "tools: tools must be an array");
  EXPECT_EQ(refused(R"("tools":[1])"), "tools[0]: tools[0] must be an object");
  EXPECT_EQ(refused(R"("tools":[{"type":"function"}])"),
            "tools[0].function: tools[0].function must be given");
  EXPECT_EQ(refused(R"("tools":[{"type":"function","function":{}}])"),
            "tools[0].function.name: tools[0].function.name must be given");
  EXPECT_EQ(refused(R"("tools":[{"type":"function","function":{"name":"f","parameters":"x"}}])"),
            "tools[0].function.parameters: tools[0].function.parameters must be an object");
  EXPECT_EQ(refused(R"("tools":[{"type":"custom","custom":{"name":"f"}}])"),
            "tools[0].type: tools[0].type custom is not supported; tools are functions");
  EXPECT_EQ(refused(R"("functions":[{"name":"f"}])"), "functions: functions is not supported; use tools");
  EXPECT_EQ(refused(R"("function_call":{"name":"f"})"),
            "function_call: function_call is not supported; use tool_choice");
  EXPECT_EQ(refused(R"("functions":[],"function_call":"none","tools":null)"), "");
}

TEST_F(ChatRequestTest, LateInstructionsStayInPlace) {
  const auto chat = read_messages(R"([{"role":"system","content":"a"},{"content":"b"},
      {"role":"system","content":"c"},{"role":"assistant","content":"d"},{"role":"developer","content":"e"}])");
  EXPECT_THAT(shown(chat.generation.messages),
              testing::ElementsAre("system: a", "user: b\n\n<system-reminder>\nc\n</system-reminder>",
                                   "assistant: d", "user: e"));
}

TEST_F(ChatRequestTest, InstructionsAloneGetATurn) {
  const auto chat = read_messages(R"([{"role":"system","content":"a"},{"role":"developer","content":"b"}])");
  EXPECT_THAT(shown(chat.generation.messages), testing::ElementsAre("system: a", "developer: b", "user: "));
}

TEST_F(ChatRequestTest, AnsweredConversationsGetATurn) {
  request_.body = R"({"messages":[{"content":"a"},{"role":"assistant","content":"b"}]})";
  FakeGenerator generator;
  const auto exchange = std::make_shared<FakeExchange>();
  handle_chat_completions(request_, exchange, generator);
  ASSERT_EQ(generator.submitted, 1);
  EXPECT_THAT(shown(generator.request.messages), testing::ElementsAre("user: a", "assistant: b", "user: "));
}

TEST_F(ChatRequestTest, ResponseFormat) {
  using Kind = ResponseFormat::Kind;
  EXPECT_EQ(read(R"("response_format":{"type":"text"})").generation.format.kind, Kind::text);
  EXPECT_EQ(read(R"("response_format":{"type":"json_object"})").generation.format.kind, Kind::json_object);
  const auto format =
      read(
          R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type": "object"}}})")
          .generation.format;
  EXPECT_EQ(format.kind, Kind::json_schema);
  EXPECT_EQ(format.schema, R"({"type": "object"})");
  EXPECT_TRUE(format.strict);
  EXPECT_EQ(format.field, "response_format");
  EXPECT_FALSE(read(R"("response_format":{"type":"json_schema","json_schema":{"strict":false,"schema":{}}})")
                   .generation.format.strict);
  EXPECT_EQ(read(R"("response_format":{"type":"json_object","schema":{"a":1}})").generation.format.schema,
            R"({"a":1})");
  EXPECT_EQ(complaint(), "");
  EXPECT_EQ(refused(R"("response_format":{"type":"json_schema"})"),
            "response_format.json_schema: response_format.json_schema must be given");
  EXPECT_EQ(refused(R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})"),
            "response_format.json_schema.schema: response_format.json_schema.schema must be given");
  EXPECT_EQ(refused(R"("response_format":{"type":"yaml"})"),
            "response_format.type: response_format.type must be text, json_object or json_schema");
  EXPECT_EQ(refused(R"("response_format":"json")"), "response_format: response_format must be an object");
}

TEST_F(ChatRequestTest, ReasoningCanBeLeftOut) {
  EXPECT_FALSE(read(R"("reasoning":{"exclude":false},"include_reasoning":true,"reasoning_format":"parsed")")
                   .hide_reasoning);
  for (const char* members : {R"("reasoning":{"exclude":true})", R"("include_reasoning":false)",
                              R"("reasoning_format":"hidden")"}) {
    EXPECT_TRUE(read(members).hide_reasoning) << members;
  }
  EXPECT_EQ(refused(R"("reasoning_format":"raw")"),
            "reasoning_format: reasoning_format raw is not supported");
}

TEST_F(ChatRequestTest, NumbersOfThingsAreLimited) {
  const auto repeated = [](const std::string& text, size_t count) {
    std::string list = "[" + text;
    for (size_t i = 1; i < count; ++i) list.append(",").append(text);
    return list.append("]");
  };
  EXPECT_EQ(refused_messages(repeated("{}", 65536)), "");
  EXPECT_EQ(refused_messages(repeated("{}", 65537)), "messages: messages has too many entries");
  EXPECT_EQ(refused("\"tools\":" + repeated(R"({"name":"f"})", 4097)), "tools: tools has too many entries");
  EXPECT_EQ(refused("\"model\":\"" + std::string(256, 'm') + "\""), "");
  EXPECT_EQ(refused("\"model\":\"" + std::string(257, 'm') + "\""), "model: model is too long");
}

TEST_F(ChatRequestTest, OtherRefusals) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("n":17)", "n"},
      {R"("n":0)", "n"},
      {R"("top_logprobs":21,"logprobs":true)", "top_logprobs"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":1)", "logprobs"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_completion_tokens":"5")", "max_completion_tokens"},
      {R"("temperature":-1)", "temperature"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("model":5)", "model"},
      {R"("presence_penalty":0.5)", "presence_penalty"},
      {R"("logit_bias":{"1":2})", "logit_bias"},
      {R"("stop":[1])", "stop"},
      {R"("best_of":2)", "best_of"},
      {R"("echo":true)", "echo"},
      {R"("reasoning_effort":"extreme")", "reasoning_effort"},
  };
  for (const auto& [members, param] : cases) {
    read(members);
    ASSERT_TRUE(errors_) << members;
    EXPECT_EQ(errors_.first().param, param);
    EXPECT_EQ(errors_.first().status, 400);
  }
}

TEST(HandleChat, AnswersOrSubmits) {
  FakeGenerator generator;
  generator.script = {started_event(), text_event(GenerationEvent::Kind::content, "Hi"),
                      finished_event(FinishReason::stop), done_event({})};
  http::Request request;
  request.body = R"({"messages":[{"role":"user","content":"Hi"}],"model":"gpt-x","thinking":false})";
  auto exchange = std::make_shared<FakeExchange>();
  handle_chat_completions(request, exchange, generator);
  EXPECT_EQ(generator.submitted, 1);
  EXPECT_EQ(exchange->response.status, 200);
  EXPECT_THAT(exchange->response.body, testing::StartsWith("{\"id\":\"chatcmpl-"));
  EXPECT_THAT(exchange->response.body, testing::HasSubstr("\"model\":\"gpt-x\""));
  EXPECT_EQ(exchange->response.headers, (http::HeaderList{{"x-ds4-thinking", "none"}}));

  request.body = "{\"messages\":[],\"model\":\"m\"}";
  exchange = std::make_shared<FakeExchange>();
  handle_chat_completions(request, exchange, generator);
  EXPECT_EQ(generator.submitted, 1);
  EXPECT_EQ(exchange->response.status, 400);
  EXPECT_EQ(
      exchange->response.body,
      "{\"error\":{\"message\":\"messages must not be empty\",\"type\":\"invalid_request_error\",\"param\":"
      "\"messages\",\"code\":\"invalid_value\"}}\n");
}

}  // namespace
}  // namespace ds4::server::api
