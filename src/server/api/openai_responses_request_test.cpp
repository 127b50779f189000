#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/openai_responses.hpp"
#include "server/api/test_api.hpp"
#include "server/api/test_messages.hpp"

namespace ds4::server::api {
namespace {

using testing::ElementsAre;

class ResponsesRequestTest : public testing::Test {
 protected:
  /// Members of a body beside an input.
  ResponsesRequest read(const std::string& members) {
    return read_body("{\"input\":\"Hi\"" + (members.empty() ? "" : "," + members) + "}");
  }
  std::vector<std::string> items(const std::string& input, const std::string& members = "") {
    return shown(
        read_body("{\"input\":" + input + (members.empty() ? "" : "," + members) + "}").generation.messages);
  }
  ResponsesRequest read_body(const std::string& body) {
    errors_ = FieldErrors();
    request_.body = body;
    ResponsesRequest responses = read_responses_request(request_, FakeGenerator().server, store_, errors_);
    if (errors_) responses = {};
    return responses;
  }
  std::string refused(const std::string& members) {
    read(members);
    return complaint();
  }
  std::string refused_items(const std::string& input) {
    items(input);
    return complaint();
  }
  std::string complaint() const {
    return errors_ ? errors_.first().param + ": " + errors_.first().message : "";
  }

  ResponseStore store_;
  http::Request request_;
  FieldErrors errors_;
};

TEST_F(ResponsesRequestTest, InstructionsAloneGetATurn) {
  EXPECT_THAT(items(R"([{"role":"developer","content":"a"}])", R"("instructions":"b")"),
              ElementsAre("system: b", "developer: a", "user: "));
}

TEST_F(ResponsesRequestTest, AnsweredConversationsGetATurn) {
  request_.body = R"({"input":[{"content":"a"},{"role":"assistant","content":"b"}]})";
  FakeGenerator generator;
  const auto exchange = std::make_shared<FakeExchange>();
  handle_responses(request_, exchange, generator, std::make_shared<ResponseStore>());
  ASSERT_EQ(generator.submitted, 1);
  EXPECT_THAT(shown(generator.request.messages), testing::ElementsAre("user: a", "assistant: b", "user: "));
}

TEST_F(ResponsesRequestTest, TextsThatALimitCut) {
  EXPECT_THAT(items(R"([{"content":"a"},
                        {"type":"reasoning","status":"incomplete","summary":[{"type":"summary_text","text":"b"}]},
                        {"role":"assistant","status":"incomplete","content":[{"type":"output_text","text":"c"}]},
                        {"content":"d"}])"),
              ElementsAre("user: a", "assistant: <b>c", "user: d"));
  EXPECT_EQ(complaint(), "");
}

TEST_F(ResponsesRequestTest, ReferencesToItems) {
  StoredResponse stored;
  stored.body = R"({"id":"resp_1","output":[
      {"id":"rs_1","type":"reasoning","status":"completed","summary":[{"type":"summary_text","text":"b"}]},
      {"id":"fc_1","type":"function_call","status":"completed","name":"f","call_id":"c1","arguments":"{}"}]})";
  stored.item_ids = {"rs_1", "fc_1"};
  store_.put("resp_1", stored);
  EXPECT_THAT(
      items(R"([{"content":"a"},{"type":"item_reference","id":"rs_1"},{"type":"item_reference","id":"fc_1"},
                        {"type":"function_call_output","call_id":"c1","output":"d"}])"),
      ElementsAre("user: a", "assistant: <b> c1=f{}", "tool(c1): d"));
  EXPECT_EQ(complaint(), "");
}

TEST_F(ResponsesRequestTest, Defaults) {
  const ResponsesRequest responses = read("");
  ASSERT_EQ(complaint(), "");
  EXPECT_FALSE(responses.stream);
  EXPECT_TRUE(responses.store);
  EXPECT_FALSE(responses.summaries);
  const GenerationRequest& request = responses.generation;
  EXPECT_EQ(request.kind, GenerationRequest::Kind::chat);
  EXPECT_EQ(request.model, "deepseek-v4-flash");
  EXPECT_THAT(shown(request.messages), ElementsAre("user: Hi"));
  EXPECT_EQ(request.tool_id_prefix, "call_");
  EXPECT_EQ(request.tool_choice, ToolChoice::automatic);
  EXPECT_TRUE(request.parallel_tool_calls);
  EXPECT_EQ(request.thinking.mode, ThinkMode::high);
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.body, request_.body);
}

TEST_F(ResponsesRequestTest, EveryField) {
  const ResponsesRequest responses = read(
      R"("model":"m","instructions":"Be brief.","stream":true,"store":false,"max_output_tokens":5,"temperature":0.5,)"
      R"("top_p":0.9,"reasoning":{"effort":"max","summary":"auto"},"parallel_tool_calls":false,"prompt_cache_key":"k",)"
      R"("text":{"verbosity":"low","format":{"type":"json_schema","name":"n","schema":{ "type":"object" },"strict":true}},)"
      R"("include":["reasoning.encrypted_content"],"truncation":"auto","metadata":{},"service_tier":"auto","user":"u",)"
      R"("previous_response_id":null,"conversation":null,"background":false,"prompt":null,"stream_options":{})");
  ASSERT_EQ(complaint(), "");
  const GenerationRequest& request = responses.generation;
  EXPECT_TRUE(responses.stream);
  EXPECT_FALSE(responses.store);
  EXPECT_TRUE(responses.summaries);
  EXPECT_EQ(request.model, "m");
  EXPECT_THAT(shown(request.messages), ElementsAre("system: Be brief.", "user: Hi"));
  EXPECT_EQ(request.max_tokens, 5u);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.thinking.mode, ThinkMode::max);
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_EQ(request.conversation, "k");
  EXPECT_EQ(request.format.kind, ResponseFormat::Kind::json_schema);
  EXPECT_EQ(request.format.schema, R"({ "type":"object" })");
  EXPECT_TRUE(request.format.strict);
  EXPECT_EQ(request.format.field, "text.format");
  EXPECT_FALSE(read(R"("text":{"format":{"type":"json_schema","schema":{}}})").generation.format.strict);
  EXPECT_EQ(read(R"("text":{"format":{"type":"json_object"}})").generation.format.kind,
            ResponseFormat::Kind::json_object);
  EXPECT_EQ(read(R"("reasoning":{"effort":"none","summary":null})").generation.thinking.mode,
            ThinkMode::none);
  EXPECT_FALSE(read(R"("reasoning":{"summary":"none"})").summaries);
  EXPECT_EQ(read(R"("model":"deepseek-chat")").generation.thinking.mode, ThinkMode::none);
  EXPECT_EQ(read(R"("model":"deepseek-chat","reasoning":{"effort":"low"})").generation.thinking.mode,
            ThinkMode::high);
}

TEST_F(ResponsesRequestTest, Messages) {
  EXPECT_THAT(items(R"([{"type":"message","role":"developer","content":[{"type":"input_text","text":"a"}]},
                        {"role":"system","content":"b"}, {"content":["c",{"type":"text","text":"d"},
                          {"type":"input_text","text":null}]},
                        {"role":"assistant","status":"completed","id":"msg_1","content":[
                          {"type":"output_text","text":"e","annotations":[]}]},
                        {"role":"developer","content":"f"}, {"role":"user","content":null,"status":""}])"),
              ElementsAre("developer: a", "system: b", "user: cd", "assistant: e", "user: f", "user: "));
  EXPECT_EQ(complaint(), "");
  EXPECT_THAT(
      items(
          R"([{"type":"compaction","encrypted_content":"x"},{"type":"context_compaction"},{"content":"a"}])"),
      ElementsAre("user: a"));
}

TEST_F(ResponsesRequestTest, CallsAndResults) {
  EXPECT_THAT(
      items(R"([{"content":"go"},
        {"type":"function_call","call_id":"c1","id":"fc_1","name":"f","arguments":"{\"x\": 1}","status":"completed"},
        {"type":"function_call","id":"c2","namespace":"mcp__s__","name":"g","arguments":{"y":2}},
        {"type":"custom_tool_call","call_id":"c3","name":"apply_patch","input":"*** \"Begin\""},
        {"type":"local_shell_call","call_id":"c4","action":{"type":"exec","command":["ls"]},"status":"completed"},
        {"type":"tool_search_call","call_id":"c5","execution":"client","arguments":{"query":"q"}},
        {"type":"web_search_call","id":"c6","action":{"type":"search"}},
        {"type":"function_call","call_id":"c7","name":"f","arguments":""},
        {"type":"function_call_output","call_id":"c1","output":"one"},
        {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"tw"},{"type":"input_text","text":"o"}]},
        {"type":"custom_tool_call_output","call_id":"c3","output":{"ok": true}},
        {"type":"local_shell_call_output","id":"c4","result":"four"},
        {"type":"web_search_call_output","id":"c6"}])"),
      ElementsAre(
          "user: go",
          "assistant:  c1=f{\"x\": 1} c2=mcp__s__g{\"y\":2} c3=apply_patch{\"input\":\"*** \\\"Begin\\\"\"} "
          "c4=local_shell{\"command\":[\"ls\"]} c5=tool_search{\"query\":\"q\"} "
          "c6=web_search_call{\"type\":\"search\"} c7=f{}",
          "tool(c1): one", "tool(c2): two", "tool(c3): {\"ok\": true}", "tool(c4): four", "tool(c6): "));
  EXPECT_EQ(complaint(), "");
}

TEST_F(ResponsesRequestTest, ReasoningGoesToWhatFollows) {
  const std::string reasoning =
      R"({"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}],"content":[
          {"type":"reasoning_text","text":"c"}],"encrypted_content":"x"},)";
  const std::string call = R"({"type":"function_call","call_id":"c1","name":"f","arguments":"{}"})";
  EXPECT_THAT(items("[" + reasoning + R"({"role":"assistant","content":"a"},)" + call + "]"),
              ElementsAre("assistant: <s\nc>a c1=f{}"));
  EXPECT_THAT(items("[" + reasoning + call + "," + reasoning + R"({"role":"assistant","content":"a"}])"),
              ElementsAre("assistant: <s\nc> c1=f{}", "assistant: <s\nc>a"));
  EXPECT_THAT(items(R"([{"role":"assistant","content":"a"},)" + reasoning + call + "]"),
              ElementsAre("assistant: <s\nc>a c1=f{}"));
  EXPECT_THAT(items("[" + reasoning + R"({"role":"user","content":"a"}])"),
              ElementsAre("assistant: <s\nc>", "user: a"));
  EXPECT_THAT(items(R"([{"content":"a"},{"type":"compaction"},)" + reasoning + R"({"type":"compaction"}])"),
              ElementsAre("user: a", "assistant: <s\nc>"));
  EXPECT_THAT(
      items(R"([{"type":"reasoning","summary":[],"content":null,"encrypted_content":"x"},{"content":"a"}])"),
      ElementsAre("user: a"));
}

TEST_F(ResponsesRequestTest, InputThatMakesNoSense) {
  read_body("{}");
  EXPECT_EQ(complaint(), "input: missing input");
  EXPECT_EQ(refused_items("7"), "input: input must be a string or an array of items");
  EXPECT_EQ(refused_items("[]"), "input: input must not be empty");
  EXPECT_EQ(refused_items(R"(["Hi"])"), "input[0]: input[0] must be an object");
  EXPECT_EQ(refused_items(R"([{"role":"critic"}])"),
            "input[0].role: input[0].role must be system, developer, user or assistant");
  EXPECT_EQ(refused_items(R"([{"content":7}])"),
            "input[0].content: input[0].content must be a string or an array of parts");
  for (const char* type : {"input_image", "input_file", "refusal"}) {
    EXPECT_EQ(refused_items(std::string(R"([{"content":[{"type":")") + type + R"("}]}])"),
              std::string("input[0].content[0]: input[0].content[0]: content of type ") + type +
                  " is not supported");
  }
  EXPECT_EQ(
      refused_items(R"([{"type":"function_call_output","call_id":"c","output":[{"type":"input_image"}]}])"),
      "input[0].output[0]: input[0].output[0]: content of type input_image is not supported");
  EXPECT_EQ(refused_items(R"([{"content":"a","status":"in_progress"}])"),
            "input[0].status: input[0].status in_progress is not supported: items must be completed");
  EXPECT_EQ(
      refused_items(
          R"([{"type":"function_call","call_id":"c","name":"f","arguments":"{","status":"incomplete"}])"),
      "input[0].status: input[0].status incomplete is not supported: items must be completed");
  EXPECT_EQ(refused_items(R"([{"type":"item_reference","id":"msg_1"}])"),
            "input[0].id: The item msg_1 is not kept here; send the item itself instead");
  EXPECT_EQ(refused_items(R"([{"type":"function_call","call_id":"c"}])"),
            "input[0].name: input[0].name must be given");
  EXPECT_EQ(refused_items(R"([{"type":"function_call_output","call_id":"c9","output":"x"}])"),
            "input: Responses continuation state is not available for call_id c9; retry by replaying the "
            "full input "
            "history");
}

TEST_F(ResponsesRequestTest, PreviousResponses) {
  StoredResponse stored;
  stored.messages.emplace_back().content = "a";
  stored.messages.emplace_back().role = Role::assistant;
  stored.messages.back().tool_calls = {{"c1", "f", "{}"}};
  store_.put("resp_1", stored);
  EXPECT_THAT(
      items(
          R"([{"type":"function_call_output","call_id":"c1","output":"x"},{"role":"developer","content":"d"}])",
          R"("previous_response_id":"resp_1","instructions":"i")"),
      ElementsAre("system: i", "user: a", "assistant:  c1=f{}", "tool(c1): x", "user: d"));
  items("\"b\"", R"("previous_response_id":"resp_2")");
  EXPECT_EQ(complaint(),
            "previous_response_id: The response of previous_response_id is not kept here; replay the full "
            "input instead");
  EXPECT_EQ(errors_.first().status, 400);
  EXPECT_EQ(errors_.first().code, "previous_response_not_found");
  EXPECT_EQ(refused(R"("conversation":"conv_1")"),
            "conversation: conversation is not supported; replay full input instead");
}

TEST_F(ResponsesRequestTest, FieldsThatAreRefused) {
  EXPECT_EQ(refused(R"("background":true)"), "background: background is not supported");
  EXPECT_EQ(refused(R"("prompt":{"id":"p"})"), "prompt: prompt is not supported");
  EXPECT_EQ(refused(R"("top_logprobs":1)"), "top_logprobs: top_logprobs is not supported");
  EXPECT_EQ(refused(R"("include":["message.output_text.logprobs"])"),
            "include: include message.output_text.logprobs is not supported");
  EXPECT_EQ(refused(R"("text":{"format":{"type":"grammar"}})"),
            "text.format.type: text.format.type must be text, json_object or json_schema");
  EXPECT_EQ(refused(R"("text":{"format":{"type":"json_schema"}})"),
            "text.format.schema: text.format.schema must be given");
  EXPECT_EQ(refused(R"("max_output_tokens":-1)"),
            "max_output_tokens: max_output_tokens must be an integer between 0 and 9223372036854775807");
  EXPECT_EQ(refused(R"("reasoning":{"effort":"huge"})"),
            "reasoning.effort: reasoning.effort must be one of none, minimal, low, medium, high, xhigh, max");
}

TEST_F(ResponsesRequestTest, Tools) {
  const ResponsesRequest responses = read(R"("tools":[
      {"type":"function", "name":"f", "parameters":{"type":"object"},"strict":false},
      {"type":"function","function":{ "name":"g" }},
      {"type":"custom","name":"apply_patch","description":"Edits files.","format":{"type":"grammar","syntax":"lark","definition":"start: x"}},
      {"type":"custom","name":"note","format":{"type":"text"}},
      {"type":"namespace","name":"mcp__s__","description":"d","tools":[
         {"type":"function","name":"h","input_schema":{ "a":1 }},{"type":"function","name":"i","description":"I"}]},
      {"type":"tool_search","execution":"client"},
      {"type":"local_shell"},{"type":"web_search"},{"type":"web_search"},{"type":"mcp","server_label":"x"}])");
  ASSERT_EQ(complaint(), "");
  std::vector<std::string> schemas, names;
  for (const Tool& tool : responses.generation.tools) {
    schemas.push_back(tool.schema);
    names.push_back(tool.name);
  }
  EXPECT_THAT(names, ElementsAre("f", "g", "apply_patch", "note", "mcp__s__h", "mcp__s__i", "tool_search",
                                 "local_shell"));
  const std::string input =
      R"("parameters":{"type":"object","properties":{"input":{"type":"string","description":"The input as free text."}},)"
      R"("required":["input"]}})";
  EXPECT_EQ(schemas[0], R"({"type":"function", "name":"f", "parameters":{"type":"object"},"strict":false})");
  EXPECT_EQ(schemas[1], R"({ "name":"g" })");
  EXPECT_EQ(
      schemas[2],
      R"({"name":"apply_patch","description":"Edits files.\nThe input is free text in this grammar (lark):\nstart: x",)" +
          input);
  EXPECT_EQ(schemas[3], R"({"name":"note","description":"",)" + input);
  EXPECT_EQ(schemas[4], R"({"name":"mcp__s__h","description":"","parameters":{ "a":1 }})");
  EXPECT_EQ(schemas[5],
            R"({"name":"mcp__s__i","description":"I","parameters":{"type":"object","properties":{}}})");
  EXPECT_EQ(schemas[6],
            R"({"name":"tool_search","description":"Search available tools.","parameters":{"type":"object",)"
            R"("properties":{}}})");
  EXPECT_THAT(schemas[7], testing::StartsWith(R"({"name":"local_shell","description":)"));
  EXPECT_THAT(responses.ignored_tools, ElementsAre("web_search", "mcp"));
  EXPECT_EQ(responses.generation.tools[0].parameters, R"({"type":"object"})");
  EXPECT_EQ(responses.tools.at("mcp__s__h").name, "h");
  EXPECT_EQ(responses.tools.at("mcp__s__h").name_space, "mcp__s__");
  EXPECT_EQ(responses.tools.at("apply_patch").kind, ResponseTool::Kind::custom);

  EXPECT_EQ(refused(R"("tools":7)"), "tools: tools must be an array");
  EXPECT_EQ(refused(R"("tools":[{"type":"function"}])"), "tools[0].name: tools[0].name must be given");
  EXPECT_EQ(refused(R"("tools":[{"type":"namespace","name":"n","tools":[{"type":"namespace"}]}])"),
            "tools[0].tools[0].type: tools[0].tools[0].type namespace is not supported in a namespace");
}

TEST_F(ResponsesRequestTest, FoundToolsAreOffered) {
  const auto tools = read_body(R"({"tools":[{"type":"function","name":"f"},{"type":"tool_search"}],"input":[
      {"type":"tool_search_call","call_id":"c","arguments":{}},
      {"type":"tool_search_output","call_id":"c","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}]}]})")
                         .generation.tools;
  ASSERT_EQ(tools.size(), 3u);
  EXPECT_EQ(tools[2].name, "g");
  EXPECT_EQ(refused_items(R"([{"type":"tool_search_output","call_id":"c","tools":[7]}])"),
            "input[0].tools[0]: input[0].tools[0] must be an object");
}

TEST_F(ResponsesRequestTest, ToolChoice) {
  const auto choice = [&](const std::string& json) {
    return read(
               R"("tools":[{"type":"function","name":"f"},{"type":"custom","name":"p"},{"type":"local_shell"},
                            {"type":"namespace","name":"n__","tools":[{"type":"function","name":"g"}]}],"tool_choice":)" +
               json)
        .generation;
  };
  EXPECT_EQ(choice("\"none\"").tool_choice, ToolChoice::none);
  EXPECT_EQ(choice("\"auto\"").tool_choice, ToolChoice::automatic);
  EXPECT_EQ(choice("\"required\"").tool_choice, ToolChoice::required);
  EXPECT_EQ(choice(R"({"type":"function","name":"f"})").tool_choice, ToolChoice::named);
  EXPECT_EQ(choice(R"({"type":"function","name":"f"})").tool_choice_name, "f");
  EXPECT_EQ(choice(R"({"type":"function","function":{"name":"f"}})").tool_choice_name, "f");
  EXPECT_EQ(choice(R"({"type":"custom","name":"p"})").tool_choice_name, "p");
  EXPECT_EQ(choice(R"({"type":"local_shell"})").tool_choice_name, "local_shell");
  EXPECT_EQ(choice(R"({"type":"function","name":"g"})").tool_choice_name, "n__g");
  EXPECT_EQ(choice(R"({"type":"function","name":"g","namespace":"n__"})").tool_choice_name, "n__g");
  const GenerationRequest allowed = choice(
      R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"},{"type":"local_shell"}]})");
  ASSERT_EQ(allowed.tools.size(), 2u);
  EXPECT_EQ(allowed.tool_choice, ToolChoice::required);
  EXPECT_EQ(choice(R"({"type":"allowed_tools","tools":[]})").tools.size(), 0u);
  choice(R"({"type":"function","name":"x"})");
  EXPECT_EQ(complaint(), "tool_choice.name: tool_choice.name is not the name of a tool of this request");
  choice(R"({"type":"web_search"})");
  EXPECT_EQ(complaint(), "tool_choice.type: tool_choice.type web_search is not supported");
  choice("\"always\"");
  EXPECT_EQ(complaint(), "tool_choice: tool_choice must be none, auto, required or a tool");
  EXPECT_EQ(refused(R"("tool_choice":"required","tools":[{"type":"web_search"}])"),
            "tool_choice: tool_choice needs tools that the model can call");
}

}  // namespace
}  // namespace ds4::server::api
