#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ds4/chat.hpp"
#include "text/special_tokens.hpp"
#include "text/test_chat_cases.hpp"

namespace ds4::text {
namespace {

std::string rendered(const std::vector<ChatMessage>& messages, ChatOptions options = {}) {
  return render_chat(messages, options).text();
}

ChatMessage result_of(std::string id, std::string content) {
  ChatMessage message{Role::tool, std::move(content)};
  message.tool_call_id = std::move(id);
  return message;
}

ChatMessage assistant_with_calls(const std::vector<std::string>& ids) {
  ChatMessage message{Role::assistant};
  for (const std::string& id : ids) message.tool_calls.push_back({id, "f", "{}"});
  return message;
}

/// What follows the end of the assistant's turn.
std::string after_calls(const std::string& text) {
  return text.substr(text.rfind(kEos) + kEos.size());
}

TEST(RenderChat, GoldenConversations) {
  const std::vector<ChatCase> cases = chat_cases();
  EXPECT_EQ(cases.size(), 17u);
  for (const ChatCase& entry : cases) {
    const RenderedPrompt prompt = render_chat(entry.messages, entry.options);
    EXPECT_EQ(prompt.text(), entry.rendered) << entry.name;
    for (size_t i = 1; i < prompt.spans.size(); ++i)
      EXPECT_NE(prompt.spans[i].trusted, prompt.spans[i - 1].trusted);
  }
}

TEST(RenderChat, NanoGoldenPrompts) {
  const auto golden = read_json_file(test_data("nano/prompts.json"));
  ASSERT_TRUE(golden.is_object());
  const auto ids_of = [&](std::string_view id) {
    for (const auto& prompt : golden.at("prompts").as_array()) {
      if (prompt.at("id").as_string() == id) return token_list(prompt.at("ids"));
    }
    return std::vector<Token>();
  };
  const auto encoded = [&](std::vector<ChatMessage> messages, ThinkMode think) {
    return render_chat(messages, {.think = think}).encode(nano_tokenizer());
  };
  EXPECT_EQ(encoded({{Role::user, "Hi"}}, ThinkMode::none), ids_of("len5"));
  EXPECT_EQ(encoded({{Role::user, "Compute 12 x 11."}}, ThinkMode::max), ids_of("think_max"));
  EXPECT_EQ(encoded({{Role::system, "You are a helpful assistant"},
                     {Role::user, "My name is Marta."},
                     {Role::assistant, "Nice to meet you, Marta."},
                     {Role::user, "Calculate 47 + 85."},
                     {Role::assistant, "47 + 85 = 132"},
                     {Role::user, "What is my name?"}},
                    ThinkMode::none),
            ids_of("multi_turn"));
}

TEST(RenderChat, BordersOfSpansLeaveNoTraceInTheIds) {
  // Without special spellings in the conversation, trust makes no difference.
  for (const ChatCase& entry : chat_cases()) {
    if (entry.name == "string_with_closing_tag") continue;
    EXPECT_EQ(render_chat(entry.messages, entry.options).encode(nano_tokenizer()),
              nano_tokenizer().encode_rendered(entry.rendered))
        << entry.name;
  }
}

TEST(RenderChat, NothingFromOutsideBecomesASpecialToken) {
  std::string everything;
  for (const SpecialSpelling& spelling : kSpecialSpellings) everything += spelling.text;
  ChatMessage assistant{Role::assistant, everything, everything};
  assistant.tool_calls = {
      {"1", everything, "{\"" + everything + "\":\"" + everything + "\",\"n\":[\"" + everything + "\"]}"},
      {"2", "f", everything}};
  const auto conversation = [](const ChatMessage& middle, const std::string& text) {
    return std::vector<ChatMessage>{{Role::system, text}, {Role::user, text}, middle, result_of("1", text)};
  };
  ChatMessage harmless = assistant;
  harmless.content = harmless.reasoning = "x";
  harmless.tool_calls = {{"1", "x", "{\"x\":\"x\",\"n\":[\"x\"]}"}, {"2", "f", "x"}};
  const auto specials_of = [](const std::vector<ChatMessage>& messages, const std::string& schema) {
    std::vector<Token> specials;
    for (const Token token : render_chat(messages, {.tool_schemas = {schema}}).encode(nano_tokenizer())) {
      if (token <= 2 || token >= 4091) specials.push_back(token);
    }
    return specials;
  };
  EXPECT_EQ(specials_of(conversation(assistant, everything), everything),
            specials_of(conversation(harmless, "x"), "x"));
  EXPECT_GT(specials_of(conversation(harmless, "x"), "x").size(), 20u);
}

TEST(RenderChat, SpecialSpellingsAcrossABorderStayText) {
  const RenderedPrompt prompt{
      {{"<", true}, {"think>", false}, {"</think", true}, {">", false}, {"<think>", true}}};
  std::vector<Token> expected = nano_tokenizer().encode_plain("<think></think>");
  expected.push_back(nano_tokenizer().special().think_open);
  EXPECT_EQ(prompt.encode(nano_tokenizer()), expected);
  EXPECT_EQ(prompt.text(), "<think></think><think>");
}

TEST(RenderChat, EmptyConversation) {
  EXPECT_EQ(rendered({}), kBos);
  EXPECT_EQ(rendered({{Role::system, ""}, {Role::system, "s"}, {Role::system, ""}}),
            std::string(kBos) + "s\n\n");
}

TEST(RenderChat, ResultsFollowTheOrderOfTheCalls) {
  const std::vector<ChatMessage> messages = {{Role::user, "q"},      assistant_with_calls({"a", "b", "c"}),
                                             result_of("c", "C"),    result_of("zz", "1"),
                                             {Role::system, "note"}, result_of("a", "A"),
                                             result_of("", "2"),     result_of("b", "B")};
  EXPECT_EQ(after_calls(rendered(messages)),
            "<｜User｜><tool_result>A</tool_result><tool_result>B</tool_result><tool_result>C</tool_result>"
            "<tool_result>1</tool_result><tool_result>2</tool_result><｜Assistant｜><think>");
  const std::vector<ChatMessage> interrupted = {{Role::user, "q"},
                                                assistant_with_calls({"a", "b"}),
                                                result_of("b", "B"),
                                                {Role::user, "u"},
                                                result_of("a", "A")};
  EXPECT_EQ(after_calls(rendered(interrupted)),
            "<｜User｜><tool_result>B</tool_result><｜User｜>u<｜User｜><tool_result>A</"
            "tool_result><｜Assistant｜><think>");
}

TEST(RenderChat, MergedLayout) {
  const std::vector<ChatMessage> messages = {
      {Role::user, "q"},   {Role::user, "r"},   assistant_with_calls({"a", "b"}),
      result_of("b", "B"), result_of("a", "A"), {Role::user, "u"}};
  const std::string text = rendered(messages, {.tool_results = ToolResultLayout::merged});
  EXPECT_THAT(text, testing::StartsWith(std::string(kBos) + "<｜User｜>q\n\nr<｜Assistant｜>"));
  EXPECT_EQ(
      after_calls(text),
      "<｜User｜><tool_result>A</tool_result>\n\n<tool_result>B</tool_result>\n\nu<｜Assistant｜><think>");
}

TEST(RenderChat, ReasoningIsKeptAfterTheLastUserTurnAndWithTools) {
  ChatMessage thinker{Role::assistant, "b", "why"};
  const std::vector<ChatMessage> messages = {{Role::user, "a"}, thinker, {Role::user, "c"}, thinker};
  const std::string dropped = "<｜Assistant｜></think>b";
  const std::string kept = "<｜Assistant｜><think>why</think>b";
  EXPECT_EQ(rendered(messages), std::string(kBos) + "<｜User｜>a" + dropped + std::string(kEos) +
                                    "<｜User｜>c" + kept + std::string(kEos));
  EXPECT_THAT(rendered(messages, {.tool_schemas = {"{}"}}), testing::HasSubstr("<｜User｜>a" + kept));
  EXPECT_THAT(rendered(messages, {.think = ThinkMode::none}), testing::Not(testing::HasSubstr("why")));
}

TEST(RenderChat, ASampledReplyIsWrittenAsItWas) {
  ChatMessage answer{Role::assistant, "what the client", "made of it"};
  answer.tool_calls.push_back({"id", "f", "{}"});
  answer.sampled = std::make_shared<const SampledReply>(SampledReply{
      .reasoning = {{"a <think> b", false}},
      .content = {{"c ", false}},
      .tool_block = {{"\n\n<", false}, {std::string(kDsml), true}, {"tool_calls> <｜User｜>", false}}});
  const std::vector<ChatMessage> messages{{Role::user, "q"}, answer, result_of("id", "r")};
  const RenderedPrompt prompt = render_chat(messages, {});
  EXPECT_EQ(prompt.text(), std::string(kBos) + std::string(kUser) + "q" + std::string(kAssistant) +
                               "<think>a <think> b</think>c \n\n<｜DSML｜tool_calls> <｜User｜>" +
                               std::string(kEos) + std::string(kUser) + "<tool_result>r</tool_result>" +
                               std::string(kAssistant) + "<think>");
  // Only what was a special token when it was sampled is one now.
  EXPECT_EQ(std::count(prompt.spans.begin(), prompt.spans.end(), PromptSpan{std::string(kDsml), true}), 1);
  EXPECT_TRUE(std::any_of(prompt.spans.begin(), prompt.spans.end(), [](const PromptSpan& span) {
    return !span.trusted && span.text == "tool_calls> <｜User｜>";
  }));
}

// What one request showed, the next one shows in the same place, wherever the conversation was then.
TEST(RenderChat, RemindersStayWhereTheyAre) {
  const ChatOptions options{.tool_schemas = {R"({"name":"f"})"},
                            .tool_reminder = ToolReminder{.first_bytes = 6000, .distance_bytes = 1000}};
  std::vector<ChatMessage> messages;
  std::string before;
  size_t reminders = 0;
  for (int turn = 0; turn < 40; ++turn) {
    ChatMessage question;
    question.content = std::string(static_cast<size_t>(100 + 37 * (turn % 7)), 'x');
    messages.push_back(question);
    const RenderedPrompt prompt = render_chat(messages, options);
    const std::string text = prompt.text();
    EXPECT_THAT(text, testing::StartsWith(before.substr(0, before.rfind(kAssistant)))) << turn;
    const size_t last = text.rfind("<system-reminder>");
    if (text.size() > 6500) {
      EXPECT_LT(text.size() - last, 1000u + 700u) << turn;
    } else if (text.size() < 6000) {
      EXPECT_EQ(last, std::string::npos) << turn;
    }
    EXPECT_GE(prompt.tool_reminders, reminders);
    reminders = prompt.tool_reminders;
    before = text;
    messages.push_back({Role::assistant, "y", "why"});
  }
  EXPECT_GT(reminders, 3u);
  ChatOptions without = options;
  without.tool_schemas.clear();
  EXPECT_EQ(render_chat(messages, without).tool_reminders, 0u);
}

TEST(RenderChat, EffortBeyondMaximum) {
  const std::string text = rendered({{Role::user, "q"}}, {.think = ThinkMode::beyond});
  EXPECT_THAT(text, testing::StartsWith(std::string(kBos) +
                                        "Reasoning Effort: Beyond maximum — exhaustive, relentless, and "
                                        "uncompromising.\nYou MUST reason with the utmost depth"));
  EXPECT_THAT(text, testing::EndsWith("no error remains undiscovered.\n\n" + std::string(kUser) + "q" +
                                      std::string(kAssistant) + "<think>"));
}

TEST(RenderedPrompt, Suffix) {
  const RenderedPrompt prompt{.spans = {{"abc", true}, {"de", false}}};
  EXPECT_EQ(prompt.suffix(0).spans, prompt.spans);
  EXPECT_EQ(prompt.suffix(2).spans, (std::vector<PromptSpan>{{"c", true}, {"de", false}}));
  EXPECT_EQ(prompt.suffix(3).spans, (std::vector<PromptSpan>{{"de", false}}));
  EXPECT_EQ(prompt.suffix(4).spans, (std::vector<PromptSpan>{{"e", false}}));
  EXPECT_TRUE(prompt.suffix(5).spans.empty());
  EXPECT_TRUE(prompt.suffix(9).spans.empty());
}

}  // namespace
}  // namespace ds4::text
