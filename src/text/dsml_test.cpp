#include "text/dsml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "ds4/chat.hpp"
#include "text/string_edit.hpp"

namespace ds4::text {
namespace {

/// `{}` stands for the part of the tags that differs between the spellings.
std::string styled(std::string_view text, std::string_view sentinel) {
  return replace_all(text, "{}", sentinel);
}

constexpr std::string_view kTwoCalls =
    "\n\n<{}tool_calls>\n<{}invoke name=\"bash\">\n<{}parameter name=\"command\" string=\"true\">ls "
    "<&amp;></{}parameter>\n<{}parameter name=\"timeout\" string=\"false\">1.50 </{}parameter>\n</{}invoke>\n"
    "<{}invoke name=\"pwd\">\n</{}invoke>\n</{}tool_calls>";

std::string call_with(std::string_view parameters) {
  return styled("\n\n<{}tool_calls>\n<{}invoke name=\"f\">\n" + std::string(parameters) +
                    "</{}invoke>\n</{}tool_calls>",
                "｜DSML｜");
}

/// The arguments of the only call.
std::string arguments_of(std::string_view parameters) {
  const ParsedReply reply = parse_reply(call_with(parameters), false, true);
  return reply.tool_calls.size() == 1 ? reply.tool_calls[0].arguments : "not one call";
}

TEST(DsmlReader, ThreeSpellings) {
  for (const std::string sentinel : {"｜DSML｜", "DSML｜", ""}) {
    const std::string block = styled(kTwoCalls, sentinel);
    const ParsedReply reply = parse_reply("why</think>Let me see. " + block + "\nignored", true, true);
    EXPECT_FALSE(reply.malformed_tools);
    EXPECT_EQ(reply.reasoning, "why");
    EXPECT_EQ(reply.content, "Let me see.");
    EXPECT_EQ(reply.tool_block, " " + block);
    ASSERT_EQ(reply.tool_calls.size(), 2u);
    EXPECT_EQ(reply.tool_calls[0].name, "bash");
    EXPECT_EQ(reply.tool_calls[0].arguments, "{\"command\":\"ls <&amp;>\",\"timeout\":1.50}");
    EXPECT_EQ(reply.tool_calls[1].name, "pwd");
    EXPECT_EQ(reply.tool_calls[1].arguments, "{}");
  }
}

TEST(DsmlReader, OneBlockKeepsToOneSpelling) {
  const std::string mixed = replace_all(styled(kTwoCalls, "｜DSML｜"), "</｜DSML｜invoke>", "</invoke>");
  EXPECT_TRUE(parse_reply(mixed, false, true).malformed_tools);
}

TEST(DsmlReader, MentionsInTheTextDoNotHideTheCalls) {
  const std::string block = styled(kTwoCalls, "｜DSML｜");
  const ParsedReply plain = parse_reply("Use <tool_calls> for this:" + block, false, true);
  EXPECT_EQ(plain.tool_calls.size(), 2u);
  EXPECT_EQ(plain.content, "Use <tool_calls> for this:");
  EXPECT_EQ(plain.tool_block, block);
  // The full spelling is never shown, and nothing behind it; the calls count all the same.
  const ParsedReply full = parse_reply("Use <｜DSML｜tool_calls>:" + block, false, true);
  EXPECT_EQ(full.tool_calls.size(), 2u);
  EXPECT_EQ(full.content, "Use");
  EXPECT_TRUE(full.tool_block.empty());
  EXPECT_TRUE(full.repaired_tools);
  EXPECT_FALSE(full.malformed_tools);
  const std::string tight = block.substr(2);
  EXPECT_EQ(parse_reply("x" + tight, false, true).tool_block, tight);
  EXPECT_EQ(parse_reply("x" + tight, false, true).content, "x");
}

TEST(DsmlReader, Values) {
  const auto one = [](std::string_view attributes, std::string_view value) {
    return arguments_of("<{}parameter name=\"k\"" + std::string(attributes) + ">" + std::string(value) +
                        "</{}parameter>\n");
  };
  EXPECT_EQ(one(" string=\"true\"", " a &lt; &amp; \n\"b\\"), "{\"k\":\" a &lt; &amp; \\n\\\"b\\\\\"}");
  EXPECT_EQ(one("", "plain"), "{\"k\":\"plain\"}");
  EXPECT_EQ(one(" string=\"true\"", "x&lt;/{}parameter>y"), "{\"k\":\"x</｜DSML｜parameter>y\"}");
  EXPECT_EQ(one(" string=\"false\"", " [ 1.0, {\"a b\" : 2e5} ]\n"), "{\"k\":[1.0,{\"a b\":2e5}]}");
  EXPECT_EQ(one(" string=\"false\"", " "), "{\"k\":null}");
  EXPECT_EQ(one(" string=\"false\"", "no json"), "not one call");
  EXPECT_EQ(one(" string=\"false\"", "[1] and more"), "not one call");
  EXPECT_EQ(one(" string=\"maybe\"", "true"), "{\"k\":true}");
  EXPECT_EQ(
      arguments_of("<{}parameter string=\"true\" name=\"a&quot;&lt;&amp;lt;&apos;&nope;\">v</{}parameter>"),
      "{\"a\\\"<&lt;'&nope;\":\"v\"}");
}

TEST(DsmlReader, NestedParametersMakeAnObject) {
  EXPECT_EQ(
      arguments_of("<{}parameter name=\"o\">\n <{}parameter name=\"a\" string=\"false\">1</{}parameter>\n"
                   " <{}parameter name=\"b\">x</{}parameter>\n</{}parameter>\n"
                   "<{}parameter name=\"p\">y</{}parameter>\n"),
      "{\"o\":{\"a\":1,\"b\":\"x\"},\"p\":\"y\"}");
  EXPECT_EQ(arguments_of("<{}parameter name=\"o\"><{}parameter name=\"a\">x</{}parameter></{}parameter>"),
            "{\"o\":{\"a\":\"x\"}}");
}

TEST(DsmlReader, BlockWithoutCalls) {
  const ParsedReply reply = parse_reply("a\n\n<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>", false, true);
  EXPECT_FALSE(reply.malformed_tools);
  EXPECT_TRUE(reply.tool_calls.empty());
  EXPECT_EQ(reply.content, "a");
  EXPECT_EQ(reply.tool_block, "\n\n<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>");
}

TEST(DsmlReader, EveryTruncationKeepsCompleteCallsOnly) {
  const std::string before = "why</think>Text";
  for (const std::string sentinel : {"｜DSML｜", "DSML｜", ""}) {
    const std::string text = before + styled(kTwoCalls, sentinel);
    const size_t block_open = before.size() + styled("\n\n<{}tool_calls>", sentinel).size();
    // What cannot be anything but the beginning of a block is left out.
    const size_t marker = before.size() + 2 + (sentinel.empty() ? 12 : sentinel == "DSML｜" ? 5 : 8);
    const size_t first_value = text.find(styled("</{}parameter>\n", sentinel));
    const size_t first_call =
        text.find(styled("</{}invoke>", sentinel)) + styled("</{}invoke>", sentinel).size();
    for (size_t length = before.size(); length < text.size(); ++length) {
      SCOPED_TRACE(text.substr(0, length));
      const ParsedReply reply = parse_reply(text.substr(0, length), true, true);
      EXPECT_EQ(reply.reasoning, "why");
      EXPECT_EQ(reply.content, length < marker ? text.substr(11, length - 11) : "Text");
      EXPECT_TRUE(reply.tool_block.empty());
      if (length >= block_open) {
        EXPECT_EQ(reply.repaired_tools, !reply.tool_calls.empty());
        EXPECT_TRUE(reply.malformed_tools || reply.repaired_tools);
      }
      if (length < first_value) {
        EXPECT_TRUE(reply.tool_calls.empty());
      }
      if (length >= first_call) {
        ASSERT_GE(reply.tool_calls.size(), 1u);
        EXPECT_EQ(reply.tool_calls[0].arguments, "{\"command\":\"ls <&amp;>\",\"timeout\":1.50}");
      }
    }
    EXPECT_EQ(parse_reply(text.substr(0, text.size() - 1), true, true).tool_calls.size(), 2u);
  }
}

TEST(DsmlReader, MissingNamesAndTags) {
  for (const std::string broken :
       {"<{}parameter string=\"true\">v</{}parameter>", "<{}parameter name=\"a>v</{}parameter>", "text",
        "<{}parameter name=\"a\">v", "<{}parameter name=\"a\"", "<{}invoke name=\"g\">"}) {
    const ParsedReply reply = parse_reply(call_with(broken), false, true);
    EXPECT_TRUE(reply.malformed_tools) << broken;
    EXPECT_EQ(reply.content, "");
    EXPECT_FALSE(reply.tool_fault_reason.empty());
  }
  EXPECT_TRUE(parse_reply("<tool_calls><invoke></invoke></tool_calls>", false, true).malformed_tools);
}

TEST(ParseReply, WithoutToolsMarkupIsText) {
  const std::string block = styled(kTwoCalls, "｜DSML｜");
  const ParsedReply reply = parse_reply("r</think>" + block, true, false);
  EXPECT_EQ(reply.reasoning, "r");
  EXPECT_EQ(reply.content, block);
  EXPECT_TRUE(reply.tool_calls.empty());
  EXPECT_FALSE(reply.malformed_tools);
}

TEST(ParseReply, Reasoning) {
  const ParsedReply simple = parse_reply("Simple arithmetic.</think>2 + 2 = 4.", true, false);
  EXPECT_EQ(simple.reasoning, "Simple arithmetic.");
  EXPECT_EQ(simple.content, "2 + 2 = 4.");
  EXPECT_EQ(parse_reply("<think>a</think>b</think>c", true, true).reasoning, "a");
  EXPECT_EQ(parse_reply("<think>a</think>b</think>c", true, true).content, "b</think>c");
  EXPECT_EQ(parse_reply("cut off", true, true).reasoning, "cut off");
  EXPECT_EQ(parse_reply("cut off", true, true).content, "");
  EXPECT_EQ(parse_reply("<think>a</think>b", false, true).content, "<think>a</think>b");
  EXPECT_EQ(parse_reply("", true, true).content, "");
}

TEST(ParseReply, MarkupInsideReasoningIsNoCall) {
  const std::string block = styled(kTwoCalls, "｜DSML｜");
  const ParsedReply both = parse_reply("maybe" + block + "</think>done", true, true);
  EXPECT_TRUE(both.tool_calls.empty());
  EXPECT_EQ(both.content, "done");
  EXPECT_EQ(both.reasoning, "maybe" + block);
  EXPECT_FALSE(both.malformed_tools);
  const ParsedReply reopened = parse_reply("a</think>b<think>" + block + "</think>c", true, true);
  EXPECT_TRUE(reopened.tool_calls.empty());
  EXPECT_EQ(reopened.content, "b<think>\n\n…</think>c");
  const ParsedReply after = parse_reply("a</think>b<think>" + block + "</think>c" + block, true, true);
  EXPECT_EQ(after.tool_calls.size(), 2u);
  EXPECT_EQ(after.content, "b<think>\n\n…</think>c");
}

TEST(ParseReply, CallsAtTheEndOfUnclosedReasoningCount) {
  const std::string block = styled(kTwoCalls, "｜DSML｜");
  const ParsedReply reply = parse_reply("maybe" + block, true, true);
  EXPECT_EQ(reply.reasoning, "maybe");
  EXPECT_EQ(reply.tool_calls.size(), 2u);
  EXPECT_EQ(reply.tool_block, block);
  EXPECT_TRUE(reply.repaired_tools);
  EXPECT_FALSE(reply.malformed_tools);
}

TEST(ParseReply, ReasoningTagsInsideAValueBelongToIt) {
  const std::string block =
      call_with("<{}parameter name=\"k\" string=\"true\"><think>x</think></{}parameter>\n");
  const ParsedReply reply = parse_reply("why</think>" + block, true, true);
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(reply.tool_calls[0].arguments, "{\"k\":\"<think>x</think>\"}");
}

TEST(DsmlWriter, WhatIsWrittenIsReadBack) {
  const std::vector<ToolCall> calls = {
      {"", "a\"b<c>&d",
       R"({"k\"1":"v<>&\"&lt;","n":1.50,"big":123456789012345678901234567890,"b":true,"z":null})"},
      {"", "g", R"({"l":[1,2],"o":{"x":"y </｜DSML｜parameter> z"},"t":"a</｜DSML｜parameter>b\n"})"},
      {"", "h", "{}"}};
  const std::string block = render_tool_calls(calls);
  const ParsedReply reply = parse_reply("x" + block, false, true);
  EXPECT_EQ(reply.content, "x");
  EXPECT_EQ(reply.tool_block, block);
  ASSERT_EQ(reply.tool_calls.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(reply.tool_calls[i].name, calls[i].name);
  EXPECT_EQ(reply.tool_calls[0].arguments, calls[0].arguments);
  EXPECT_EQ(reply.tool_calls[1].arguments,
            R"({"l":[1,2],"o":{"x":"y \u003c/｜DSML｜parameter> z"},"t":"a</｜DSML｜parameter>b\n"})");
  EXPECT_EQ(reply.tool_calls[2].arguments, "{}");
  EXPECT_EQ(render_tool_calls({}), "");
}

TEST(ParseReply, AnyTextIsTakenApart) {
  const std::vector<std::string> parts = {"<think>",
                                          "</think>",
                                          "\n\n",
                                          "<｜DSML｜tool_calls>",
                                          "</｜DSML｜tool_calls>",
                                          "<｜DSML｜invoke name=\"f\">",
                                          "</｜DSML｜invoke>",
                                          "<｜DSML｜parameter name=\"k\"",
                                          " string=\"false\"",
                                          ">",
                                          "</｜DSML｜parameter>",
                                          "<tool_calls>",
                                          "</tool_calls>",
                                          "<invoke name=\"",
                                          "\">",
                                          "</invoke>",
                                          "<parameter",
                                          "</parameter>",
                                          "{\"a\":",
                                          "[",
                                          "\\u12",
                                          "&lt;",
                                          "text",
                                          "\xE2\x96",
                                          std::string(1, '\0'),
                                          "\xFF"};
  std::mt19937 random(9);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t count = random() % 25; count > 0; --count) text += parts[random() % parts.size()];
    const bool think = random() % 2 == 0;
    const ParsedReply reply = parse_reply(text, think, true);
    ASSERT_THAT(text, testing::HasSubstr(reply.tool_block));
    if (reply.content.find("…") == std::string::npos) {
      ASSERT_LE(reply.reasoning.size() + reply.content.size() + reply.tool_block.size(), text.size());
    }
    ASSERT_THAT(reply.content, testing::Not(testing::HasSubstr("<｜DSML｜tool_calls")));
    ASSERT_EQ(reply.malformed_tools, reply.tool_fault != ToolFault::none);
    ASSERT_EQ(reply.malformed_tools, !reply.tool_fault_reason.empty());
    ASSERT_FALSE(reply.repaired_tools && reply.tool_calls.empty());
  }
}

TEST(ParseReply, TimeIsLinear) {
  std::string text = "r</think>";
  while (text.size() < 4000000) text += "<think><invoke></think><｜DSML｜";
  text += "<tool_calls><invoke name=\"f\">";
  for (int i = 0; i < 100000; ++i) text += "<parameter name=\"k\"><parameter name=\"k\">";
  EXPECT_TRUE(parse_reply(text, true, true).malformed_tools);
}

}  // namespace
}  // namespace ds4::text
