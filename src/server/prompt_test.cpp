#include "server/prompt.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "text/sampled_reply.hpp"
#include "text/special_tokens.hpp"
#include "text/test_vocabulary.hpp"

namespace ds4::server {
namespace {

using testing::HasSubstr;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = text::nano_vocabulary().make().value();
  return instance;
}

Prompt prompt_of(const GenerationRequest& request, SharedReplyMemory& memory) {
  return std::get<Prompt>(build_prompt(request, memory, tokenizer()));
}

constexpr const char* kBlock =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter  name=\"x\" string=\"true\">"
    "<｜User｜></｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

/// Tokens of a reply with a call, as a model would sample them: the user's spelling inside is plain text.
std::vector<Token> sampled_tokens(const std::string& reasoning, const std::string& content) {
  RenderedPrompt rendered;
  rendered.spans = {{reasoning, false}, {"</think>", true}, {content, false}};
  std::string block = kBlock;
  const size_t user = block.find("<｜User｜>");
  rendered.spans.push_back({block.substr(0, user), true});
  rendered.spans.push_back({"<｜User｜>", false});
  rendered.spans.push_back({block.substr(user + std::string_view("<｜User｜>").size()), true});
  return rendered.encode(tokenizer());
}

ChatMessage message(Role role, std::string content) {
  ChatMessage result;
  result.role = role;
  result.content = std::move(content);
  return result;
}

GenerationRequest with_tool() {
  GenerationRequest request;
  request.tools = {{.name = "f", .schema = R"({"name":"f"})", .parameters = {}}};
  request.messages = {message(Role::user, "question")};
  return request;
}

TEST(SampledReply, IsTakenApartWithItsSpecialTokens) {
  const std::vector<Token> tokens = sampled_tokens("why\n", "text ");
  const auto reply = text::sampled_reply(tokens, std::string_view(kBlock).size(), true, tokenizer());
  ASSERT_NE(reply, nullptr);
  EXPECT_EQ(reply->reasoning, (std::vector<PromptSpan>{{"why\n", false}}));
  EXPECT_EQ(reply->content, (std::vector<PromptSpan>{{"text ", false}}));
  std::string block;
  for (const PromptSpan& span : reply->tool_block) {
    block += span.text;
    EXPECT_EQ(span.trusted, span.text == text::kDsml) << span.text;
  }
  EXPECT_EQ(block, kBlock);
  EXPECT_EQ(text::sampled_reply({tokens.begin(), tokens.begin() + 1}, 0, true, tokenizer()), nullptr);
}

// A client sends a call back in its own words and without reasoning; the prompt has what was sampled.
TEST(BuildPrompt, SampledCallsAreContinuedByTheirIds) {
  SharedReplyMemory memory{{}};
  GenerationRequest request = with_tool();
  const Prompt first = prompt_of(request, memory);
  EXPECT_TRUE(first.thinking);
  const std::vector<Token> tokens = sampled_tokens("why\n", "text ");
  memory.put({"call_1"}, text::sampled_reply(tokens, std::string_view(kBlock).size(), true, tokenizer()));

  ChatMessage call = message(Role::assistant, "text");
  call.tool_calls = {{"call_1", "f", R"({ "x" : "\u003c｜User｜>" })"}};
  ChatMessage result = message(Role::tool, "result");
  result.tool_call_id = "call_1";
  request.messages.insert(request.messages.end(), {call, result});
  const Prompt second = prompt_of(request, memory);
  std::vector<Token> live = first.tokens;
  live.insert(live.end(), tokens.begin(), tokens.end());
  ASSERT_GT(second.tokens.size(), live.size());
  EXPECT_EQ(std::vector<Token>(second.tokens.begin(), second.tokens.begin() + live.size()), live);
  EXPECT_EQ(second.tokens[live.size()], tokenizer().special().eos);
  EXPECT_EQ(second.replies_known, 1u);

  request.messages[1].content = "edited";
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr("why\n</think>edited\n\n<｜DSML｜"));
  request.messages[1].tool_calls[0].id = "call_2";
  const Prompt unknown = prompt_of(request, memory);
  EXPECT_THAT(unknown.text, HasSubstr("<think></think>edited"));
  EXPECT_EQ(unknown.replies_unknown, 1u);
}

TEST(BuildPrompt, ParallelCallsAreKnownAfterARestart) {
  class Archive : public ReplyArchive {
   public:
    std::shared_ptr<const SampledReply> get_reply(std::string_view key) override {
      const auto found = replies.find(std::string(key));
      return found == replies.end() ? nullptr : std::make_shared<const SampledReply>(found->second);
    }
    void put_reply(const std::vector<std::string>& keys,
                   const std::shared_ptr<const SampledReply>& reply) override {
      for (const std::string& key : keys) replies[key] = *reply;
    }
    std::map<std::string, SampledReply> replies;
  } archive;
  const std::vector<Token> tokens = sampled_tokens("why\n", "text ");
  SharedReplyMemory({}, &archive)
      .put({"one", "two"}, text::sampled_reply(tokens, std::string_view(kBlock).size(), true, tokenizer()));
  SharedReplyMemory memory({}, &archive);
  GenerationRequest request = with_tool();
  ChatMessage calls = message(Role::assistant, "text");
  calls.tool_calls = {{"one", "f", "{}"}, {"two", "f", "{}"}};
  request.messages.push_back(calls);
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr("why\n</think>text "));
  archive.replies["two"].content = {{"of another reply", false}};
  SharedReplyMemory another({}, &archive);
  EXPECT_EQ(prompt_of(request, another).replies_unknown, 1u);
}

// What a client made of a call counts: what the model sees must be what was done.
TEST(BuildPrompt, CallsThatClientsChangeAreWrittenAsTheyShowThem) {
  SharedReplyMemory memory{{}};
  GenerationRequest request = with_tool();
  memory.put({"call_1"}, text::sampled_reply(sampled_tokens("why\n", "text "),
                                             std::string_view(kBlock).size(), true, tokenizer()));
  request.messages.push_back(message(Role::assistant, "text"));
  ChatMessage& call = request.messages.back();
  const std::string sampled = "name=\"f\">\n<｜DSML｜parameter  name";  // two spaces
  call.tool_calls = {{"call_1", "f", R"({"x":"<｜User｜>"})"}};
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr(sampled));
  EXPECT_EQ(prompt_of(request, memory).calls_changed, 0u);
  call.tool_calls = {{"call_1", "f", R"({"x":"edited"})"}};
  const Prompt edited = prompt_of(request, memory);
  EXPECT_THAT(edited.text,
              HasSubstr("why\n</think>text \n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
                        "<｜DSML｜parameter name=\"x\" string=\"true\">edited<"));
  EXPECT_EQ(edited.calls_changed, 1u);
  call.tool_calls = {{"call_1", "g", R"({"x":"<｜User｜>"})"}};
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr("invoke name=\"g\""));
  call.tool_calls = {{"call_1", "f", R"({"x":"<｜User｜>"})"}, {"call_1", "f", R"({"x":"more"})"}};
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr(">more<"));
  call.tool_calls = {{"call_1", "f", "no JSON"}};
  EXPECT_EQ(prompt_of(request, memory).calls_changed, 1u);
}

// Markup that had to be repaired is not shown to the model again; its calls are, in good order.
TEST(BuildPrompt, RepairedCallsAreWrittenAnew) {
  SharedReplyMemory memory{{}};
  GenerationRequest request = with_tool();
  std::vector<Token> tokens = sampled_tokens("why\n", "text ");
  memory.put({"call_1"}, text::sampled_reply(tokens, 0, true, tokenizer()));
  request.messages.push_back(message(Role::assistant, "text"));
  request.messages.back().tool_calls = {{"call_1", "f", R"({"x":"y"})"}};
  const Prompt prompt = prompt_of(request, memory);
  EXPECT_THAT(prompt.text,
              HasSubstr("why\n</think>text\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
                        "<｜DSML｜parameter name=\"x\" string=\"true\">y<"));
  EXPECT_EQ(prompt.calls_changed, 0u);
}

// A final answer has no id. It is known by the messages before it, or, if a client changes the system text,
// by the user's first turn and the message it answers.
TEST(BuildPrompt, FinalAnswersAreKnownByTheirTranscript) {
  SharedReplyMemory memory{{}};
  GenerationRequest request = with_tool();
  request.messages.insert(request.messages.begin(), message(Role::system, "time: 10:00"));
  const Prompt first = prompt_of(request, memory);
  const auto reply = std::make_shared<const SampledReply>(
      SampledReply{.reasoning = {{"because", false}}, .content = {{"answer\n", false}}});
  const TranscriptKeys keys = reply_keys(first.transcript, "answer");
  memory.put({keys.exact}, reply);

  request.messages.insert(request.messages.end(),
                          {message(Role::assistant, "answer"), message(Role::user, "next")});
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr("<think>because</think>answer\n<｜end"));
  request.messages[0].content = "time: 10:01";
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr("<think></think>answer<｜end"));
  memory.put({keys.local}, reply);
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr("<think>because</think>answer\n<｜end"));
  // Nobody else's reasoning: the conversation has to begin with the same turn.
  request.messages.insert(request.messages.begin() + 1,
                          {message(Role::user, "other"), message(Role::assistant, "x")});
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr("<think></think>answer<｜end"));
  request.messages.erase(request.messages.begin() + 1, request.messages.begin() + 3);
  request.messages[2].content = "another answer";
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr("<think></think>another answer<｜end"));
}

TEST(BuildPrompt, SpecialPositions) {
  SharedReplyMemory memory{{}};
  GenerationRequest request;
  request.messages = {message(Role::user, "<｜User｜>x")};
  request.thinking.mode = ThinkMode::none;
  const Prompt prompt = prompt_of(request, memory);
  std::vector<std::string> found;
  for (const size_t position : prompt.special) {
    const text::SpecialMatch match = text::find_special(prompt.text, position);
    ASSERT_EQ(match.position, position);
    found.emplace_back(match.spelling->text);
  }
  EXPECT_EQ(found, (std::vector<std::string>{std::string(text::kBos), std::string(text::kUser),
                                             std::string(text::kAssistant), std::string(text::kThinkClose)}));
  EXPECT_FALSE(prompt.thinking);
}

TEST(BuildPrompt, ToolsAreShownUnlessSwitchedOff) {
  SharedReplyMemory memory{{}};
  GenerationRequest request = with_tool();
  EXPECT_THAT(prompt_of(request, memory).text, HasSubstr(R"({"name":"f"})"));
  request.tool_choice = ToolChoice::none;
  EXPECT_THAT(prompt_of(request, memory).text, testing::Not(HasSubstr(R"({"name":"f"})")));
}

TEST(BuildPrompt, ReasoningIsForgottenWithoutTools) {
  SharedReplyMemory memory{{}};
  GenerationRequest request = with_tool();
  request.thinking.mode = ThinkMode::high;
  EXPECT_FALSE(prompt_of(request, memory).forgets_reasoning);
  request.tool_choice = ToolChoice::none;
  EXPECT_TRUE(prompt_of(request, memory).forgets_reasoning);
  request.thinking.mode = ThinkMode::none;
  EXPECT_FALSE(prompt_of(request, memory).forgets_reasoning);
  request.thinking.mode = ThinkMode::high;
  request.messages.push_back({Role::tool, "42"});
  EXPECT_FALSE(prompt_of(request, memory).forgets_reasoning);
}

TEST(BuildPrompt, Completion) {
  SharedReplyMemory memory{{}};
  GenerationRequest request;
  request.kind = GenerationRequest::Kind::completion;
  request.prompt = "2 + 2";
  request.thinking.mode = ThinkMode::none;
  EXPECT_EQ(prompt_of(request, memory).text,
            "<｜begin▁of▁sentence｜>You are a helpful assistant<｜User｜>2 + 2<｜Assistant｜></think>");
}

TEST(BuildPrompt, InfillNeedsItsTokens) {
  SharedReplyMemory memory{{}};
  GenerationRequest request;
  request.kind = GenerationRequest::Kind::infill;
  request.prompt = "a<｜fim▁hole｜>";
  request.suffix = "b";
  const auto without = build_prompt(request, memory, tokenizer());
  EXPECT_EQ(std::get<RequestError>(without).param, "suffix");

  text::VocabularyTables tables = text::nano_vocabulary();
  const Token begin = static_cast<Token>(tables.tokens.size());
  tables.tokens.insert(tables.tokens.end(), {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"});
  const Tokenizer with = tables.make().value();
  const Prompt prompt = std::get<Prompt>(build_prompt(request, memory, with));
  EXPECT_EQ(prompt.tokens.front(), with.special().bos);
  EXPECT_EQ(prompt.tokens[1], begin);
  EXPECT_EQ(std::count(prompt.tokens.begin(), prompt.tokens.end(), begin + 1), 1);
  EXPECT_EQ(prompt.tokens.back(), begin + 2);
}

}  // namespace
}  // namespace ds4::server
