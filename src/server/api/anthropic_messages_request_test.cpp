#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/anthropic_messages.hpp"
#include "server/api/test_api.hpp"
#include "server/api/test_messages.hpp"

namespace ds4::server::api {
namespace {

using testing::ElementsAre;

class MessagesRequestTest : public testing::Test {
 protected:
  /// Members of a body beside a message of a user.
  MessagesRequest read(const std::string& members) {
    return read_body("{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]" +
                     (members.empty() ? "" : "," + members) + "}");
  }
  std::vector<ChatMessage> read_messages(const std::string& messages) {
    return read_body("{\"messages\":" + messages + "}").generation.messages;
  }
  MessagesRequest read_body(const std::string& body) {
    errors_ = FieldErrors();
    request_.body = body;
    MessagesRequest messages = read_messages_request(request_, FakeGenerator().server, options_, errors_);
    if (errors_) messages = {};
    return messages;
  }
  std::string system_of(const std::string& system) {
    const auto messages = read("\"system\":" + system).generation.messages;
    if (messages.empty()) return "refused: " + complaint();
    return messages[0].role == Role::system ? messages[0].content : "none";
  }
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

  MessagesOptions options_;
  http::Request request_;
  FieldErrors errors_;
};

TEST_F(MessagesRequestTest, Defaults) {
  const MessagesRequest messages = read("");
  ASSERT_EQ(complaint(), "");
  const GenerationRequest& request = messages.generation;
  EXPECT_FALSE(messages.stream);
  EXPECT_EQ(request.kind, GenerationRequest::Kind::chat);
  EXPECT_EQ(request.model, "deepseek-v4-flash");
  EXPECT_THAT(shown(request.messages), ElementsAre("user: Hi"));
  EXPECT_EQ(request.tool_choice, ToolChoice::automatic);
  EXPECT_TRUE(request.parallel_tool_calls);
  EXPECT_EQ(request.tool_id_prefix, "toolu_");
  EXPECT_EQ(request.thinking.mode, ThinkMode::high);
  EXPECT_EQ(request.thinking.budget_tokens, std::nullopt);
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.choices, 1u);
  EXPECT_EQ(request.body, request_.body);
}

TEST_F(MessagesRequestTest, EveryField) {
  const MessagesRequest messages = read(
      R"("model":"m","stream":true,"max_tokens":5,"temperature":0.5,"top_p":0.9,"top_k":40,)"
      R"("stop_sequences":["a","","b"],"metadata":{"user_id":"u"},"thinking":{"type":"enabled","budget_tokens":9},)"
      R"("output_config":{"effort":"max","format":{"type":"json_schema","schema":{ "type":"object" }}},)"
      R"("betas":["x"],"cache_control":{"type":"ephemeral"},"service_tier":"auto","container":null,)"
      R"("context_management":{"edits":[]},"mcp_servers":[])");
  ASSERT_EQ(complaint(), "");
  const GenerationRequest& request = messages.generation;
  EXPECT_TRUE(messages.stream);
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 5u);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
  EXPECT_EQ(request.conversation, "u");
  EXPECT_EQ(request.thinking.mode, ThinkMode::max);
  EXPECT_EQ(request.thinking.budget_tokens, 9u);
  EXPECT_EQ(request.format.kind, ResponseFormat::Kind::json_schema);
  EXPECT_EQ(request.format.schema, R"({ "type":"object" })");
  EXPECT_EQ(request.format.field, "output_config.format");
  request_.headers = {{"X-Claude-Code-Session-Id", "s"}};
  EXPECT_EQ(read(R"("metadata":{"user_id":"u"})").generation.conversation, "s");
  EXPECT_EQ(
      read(R"("thinking":{"type":"disabled"},"output_config":{"effort":"max"})").generation.thinking.mode,
      ThinkMode::none);
}

TEST_F(MessagesRequestTest, System) {
  EXPECT_EQ(system_of(R"("Be brief.")"), "Be brief.");
  EXPECT_EQ(system_of("null"), "none");
  EXPECT_EQ(system_of(R"("")"), "none");
  EXPECT_EQ(
      system_of(R"(["a",{"type":"text","text":"b\n","cache_control":{"type":"ephemeral"}},{"text":"c"}])"),
      "a\nb\nc");
  EXPECT_EQ(
      system_of(
          R"([{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"a"}])"),
      "a");
  EXPECT_EQ(system_of(R"("x-anthropic-billing-header: cch=1;\nYou are")"), "You are");
  EXPECT_EQ(system_of(R"([{"type":"image"}])"),
            "refused: system[0]: system[0]: content of type image is not supported");
  EXPECT_EQ(system_of("7"), "refused: system: system must be a string or an array of blocks");
  options_.volatile_text.drop = false;
  EXPECT_EQ(system_of(R"("x-anthropic-a\nb")"), "x-anthropic-a\nb");
}

TEST_F(MessagesRequestTest, SystemMessages) {
  EXPECT_THAT(shown(read_body(R"({"system":"a","messages":[{"role":"system","content":"b"},
                                 {"role":"user","content":"c"},{"role":"assistant","content":"d"},
                                 {"role":"system","content":[{"type":"text","text":"e"}]},
                                 {"role":"user","content":"f"}]})")
                        .generation.messages),
              ElementsAre("system: a", "system: b", "user: c", "assistant: d",
                          "user: <system-reminder>\ne\n</system-reminder>\n\nf"));
  // Behind the question, as an agent sends its lists: the question stays the first thing of its turn.
  EXPECT_THAT(shown(read_messages(R"([{"role":"user","content":"q"},{"role":"system","content":"lists"},
                                      {"role":"system","content":"<system-reminder>more</system-reminder>"},
                                      {"role":"system","content":""}])")),
              ElementsAre("user: q\n\n<system-reminder>\nlists\n</system-reminder>\n\n"
                          "<system-reminder>more</system-reminder>"));
  // Behind results it is a turn of its own, and does not part them.
  EXPECT_THAT(shown(read_messages(R"([{"role":"user","content":"q"},
          {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}},
                                         {"type":"tool_use","id":"2","name":"f","input":{}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"a"}]},
          {"role":"system","content":"s"},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"2","content":"b"}]}])")),
              ElementsAre("user: q", "assistant:  1=f{} 2=f{}", "tool(1): a", "tool(2): b",
                          "user: <system-reminder>\ns\n</system-reminder>"));
}

TEST_F(MessagesRequestTest, Blocks) {
  EXPECT_THAT(shown(read_messages(R"([
      {"content":[{"type":"text","text":"a"},"b",{"text":"c","cache_control":{}}],"role":"user"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"r","signature":"wrong"},
         {"type":"redacted_thinking","data":"x"},{"type":"text","text":"d"},
         {"type":"server_tool_use","id":"s"},{"type":"web_search_tool_result","tool_use_id":"s","content":[]},
         {"type":"tool_use","id":"t1","name":"f","input":{ "x": 1 }},{"type":"tool_use","id":"t2","name":"g"}]},
      {"role":"user","content":[
         {"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"two"},"!"],"is_error":true},
         {"type":"text","text":"and"},
         {"type":"tool_result","tool_use_id":"t1","content":"one"}]},
      {"role":"assistant","content":""},{"role":"assistant","content":"e"},
      {"role":"user","content":[]},{"role":"user","content":null}])")),
              ElementsAre("user: abc", "assistant: <r>d t1=f{ \"x\": 1 } t2=g{}", "tool(t2): two!",
                          "tool(t1): one", "user: and", "assistant: e", "user: ", "user: "));
  EXPECT_EQ(complaint(), "");
  EXPECT_THAT(
      shown(read_messages(R"([{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f"}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}])")),
      ElementsAre("assistant:  t=f{}", "tool(t): "));
  EXPECT_THAT(
      shown(read_messages(R"([{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f"}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[
         {"type":"tool_reference","tool_name":"a"},{"type":"tool_reference","tool_name":"b"}]}]}])")),
      ElementsAre("assistant:  t=f{}", "tool(t): a\nb"));
}

TEST_F(MessagesRequestTest, MessagesThatMakeNoSense) {
  read_body("{}");
  EXPECT_EQ(complaint(), "messages: missing messages");
  read_body("[]");
  EXPECT_EQ(complaint(), ": invalid JSON request: the body is not a JSON object");
  EXPECT_EQ(refused_messages("[]"), "messages: messages must not be empty");
  EXPECT_EQ(refused_messages("7"), "messages: messages must be an array");
  EXPECT_EQ(refused_messages("[7]"), "messages[0]: messages[0] must be an object");
  EXPECT_EQ(refused_messages(R"([{"role":"tool"}])"),
            "messages[0].role: messages[0].role must be user, assistant or system");
  EXPECT_EQ(refused_messages(R"([{"content":7}])"),
            "messages[0].content: messages[0].content must be a string or an array of blocks");
  EXPECT_EQ(refused_messages(R"([{"content":["a",{"type":"image","source":{}}]}])"),
            "messages[0].content[1]: messages[0].content[1]: content of type image is not supported");
  EXPECT_EQ(refused_messages(R"([{"content":[{"type":"document"}]}])"),
            "messages[0].content[0]: messages[0].content[0]: content of type document is not supported");
  EXPECT_EQ(
      refused_messages(
          R"([{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]}]}])"),
      "messages[0].content[0].content[0]: messages[0].content[0].content[0]: content of type image is not "
      "supported");
  EXPECT_EQ(refused_messages(R"([{"content":[{"type":"tool_result"}]}])"),
            "messages[0].content[0].tool_use_id: messages[0].content[0].tool_use_id must be given");
  EXPECT_EQ(refused_messages(R"([{"role":"assistant","content":[{"type":"tool_use","id":"t"}]}])"),
            "messages[0].content[0].name: messages[0].content[0].name must be given");
  EXPECT_EQ(
      refused_messages(R"([{"content":[{"type":"tool_result","tool_use_id":"t9","content":"x"}]}])"),
      "messages: Anthropic continuation state is not available for tool_use_id t9; retry by replaying the "
      "full messages history");
}

TEST_F(MessagesRequestTest, Tools) {
  const MessagesRequest messages = read(
      R"("tools":[{ "name":"f", "input_schema" : {"type":"object"} ,"cache_control":{"type":"ephemeral"}},
                       {"type":"web_search_20250305","name":"web_search"},
                       {"type":"bash_20250124","name":"bash","input_schema":{}},
                       {"type":"custom","name":"g"}])");
  ASSERT_EQ(complaint(), "");
  const auto& tools = messages.generation.tools;
  ASSERT_EQ(tools.size(), 3u);
  EXPECT_EQ(tools[0].name, "f");
  EXPECT_EQ(tools[0].schema, R"({ "name":"f", "input_schema" : {"type":"object"}})");
  EXPECT_EQ(tools[0].parameters, R"({"type":"object"})");
  EXPECT_EQ(tools[2].parameters, "");
  EXPECT_THAT(messages.ignored_tools, ElementsAre("web_search_20250305"));
  EXPECT_EQ(refused(R"("tools":[{"type":"bash_20250124","name":"bash"}])"),
            "tools[0].type: tools[0].type bash_20250124 is not supported; tools need an input_schema");
  EXPECT_EQ(refused(R"("tools":[{"input_schema":{}}])"), "tools[0].name: tools[0].name must be given");
  EXPECT_EQ(refused(R"("tools":[{"name":"f","input_schema":"x"}])"),
            "tools[0].input_schema: tools[0].input_schema must be an object");
  EXPECT_EQ(refused(R"("tools":{})"), "tools: tools must be an array");
}

TEST_F(MessagesRequestTest, ToolChoice) {
  const auto choice = [&](const std::string& json) {
    return read(R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":)" + json).generation;
  };
  EXPECT_EQ(choice(R"({"type":"auto"})").tool_choice, ToolChoice::automatic);
  EXPECT_EQ(choice(R"({"type":"none"})").tool_choice, ToolChoice::none);
  EXPECT_EQ(choice(R"({"type":"any"})").tool_choice, ToolChoice::required);
  EXPECT_FALSE(choice(R"({"type":"any","disable_parallel_tool_use":true})").parallel_tool_calls);
  EXPECT_EQ(choice(R"({"type":"tool","name":"f"})").tool_choice, ToolChoice::named);
  EXPECT_EQ(choice(R"({"type":"tool","name":"f"})").tool_choice_name, "f");
  choice(R"({"type":"tool","name":"x"})");
  EXPECT_EQ(complaint(), "tool_choice.name: tool_choice.name is not the name of a tool of this request");
  choice(R"({"type":"some"})");
  EXPECT_EQ(complaint(), "tool_choice.type: tool_choice.type must be auto, any, tool or none");
  EXPECT_EQ(refused(R"("tool_choice":{"type":"any"})"), "tool_choice.type: tool_choice.type any needs tools");
}

TEST_F(MessagesRequestTest, ValuesThatMakeNoSense) {
  EXPECT_EQ(refused(R"("max_tokens":-1)"),
            "max_tokens: max_tokens must be an integer between 0 and 9223372036854775807");
  EXPECT_EQ(refused(R"("stop_sequences":[1])"),
            "stop_sequences: stop_sequences must be a string or an array of strings");
  EXPECT_EQ(refused(R"("thinking":{"type":"sometimes"})"),
            "thinking.type: thinking.type must be enabled, disabled or adaptive");
  EXPECT_EQ(refused(R"("output_config":{"format":{"type":"json_schema"}})"),
            "output_config.format.schema: output_config.format.schema must be given");
  EXPECT_EQ(refused(R"("output_format":{"type":"xml"})"),
            "output_format.type: output_format.type must be json_schema");
  EXPECT_EQ(refused(R"("frequency_penalty":1)"), "frequency_penalty: frequency_penalty is not supported");
}

TEST_F(MessagesRequestTest, EditsOfTheConversation) {
  const auto edits = [&](const std::string& json) {
    return refused("\"context_management\":{\"edits\":" + json + "}");
  };
  EXPECT_EQ(edits(R"([{"type":"clear_thinking_20251015","keep":"all"}])"), "");
  EXPECT_EQ(
      edits(R"([{"type":"clear_thinking_20251015"},{"type":"clear_tool_uses_20250919"}])"),
      "context_management.edits[1].type: context_management.edits[1].type clear_tool_uses_20250919 is not "
      "supported");
  EXPECT_EQ(edits("[5]"), "context_management.edits[0]: context_management.edits[0] must be an object");
}

TEST(Messages, HandlersAnswerInTheirOwnShape) {
  FakeGenerator generator;
  generator.counted.prompt_tokens = 7;
  http::Request request;
  request.body = R"({"messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"web_fetch_20250910"}]})";
  const auto exchange = std::make_shared<FakeExchange>();
  handle_messages(request, exchange, generator, {});
  EXPECT_EQ(generator.submitted, 1);
  EXPECT_EQ(answer_count_tokens(request, generator, {}).body, "{\"input_tokens\":7}\n");
  generator.counted.error = RequestError();
  generator.counted.error->message = "no";
  EXPECT_EQ(answer_count_tokens(request, generator, {}).body,
            "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"no\"}}\n");

  request.body = R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"{"}]})";
  handle_messages(request, exchange, generator, {});
  EXPECT_EQ(generator.submitted, 1);
  EXPECT_EQ(exchange->response.status, 400);
  EXPECT_EQ(
      exchange->response.body,
      "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"messages must not end "
      "with an assistant message: continuing it is not supported\"}}\n");
  request.body = "{";
  EXPECT_EQ(answer_count_tokens(request, generator, {}).status, 400);
}

}  // namespace
}  // namespace ds4::server::api
