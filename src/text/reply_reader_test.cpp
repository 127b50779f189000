#include "text/reply_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "ds4/chat.hpp"
#include "text/json_text.hpp"
#include "text/test_reply_cases.hpp"
#include "text/utf8.hpp"

namespace ds4::text {
namespace {

using Kind = ReplyEvent::Kind;

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    if (point.value == kInvalidByte) return false;
    i += point.length_bytes;
  }
  return true;
}

struct Reading {
  std::vector<ReplyEvent> events;  // neighbours joined
  ParsedReply reply;
};

void join(std::vector<ReplyEvent>& joined, const std::vector<ReplyEvent>& events) {
  for (const ReplyEvent& event : events) {
    const bool streams =
        event.kind == Kind::reasoning || event.kind == Kind::content || event.kind == Kind::call_arguments;
    if (streams && !joined.empty() && joined.back().kind == event.kind && joined.back().call == event.call) {
      joined.back().text += event.text;
    } else {
      joined.push_back(event);
    }
  }
}

/// `whole_characters`: the reply is UTF-8, so every event must be.
Reading read_parts(const std::vector<std::string_view>& parts, const ReplyCase& reply,
                   bool whole_characters = true) {
  ReplyReader reader({reply.think, reply.tools});
  Reading reading;
  const auto check = [&](const std::vector<ReplyEvent>& events) {
    for (const ReplyEvent& event : events) {
      if (event.kind == Kind::reasoning || event.kind == Kind::content) {
        EXPECT_FALSE(event.text.empty());
      }
      if (whole_characters) {
        EXPECT_TRUE(is_utf8(event.text)) << event.text;
      }
    }
    join(reading.events, events);
  };
  for (const std::string_view part : parts) check(reader.push(part));
  check(reader.finish(reply.cut));
  reading.reply = reader.result();
  return reading;
}

std::vector<std::string_view> bytes_of(std::string_view text) {
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
  return bytes;
}

/// What the events say must be what the reply holds.
void expect_consistent(const Reading& reading) {
  std::string reasoning, content, arguments;
  std::vector<ToolCall> calls;
  ToolCall call;
  bool open = false, dropped_any = false;
  size_t next = 0;
  for (const ReplyEvent& event : reading.events) {
    switch (event.kind) {
      case Kind::reasoning:
        EXPECT_TRUE(content.empty()) << "reasoning after the answer began";
        reasoning += event.text;
        break;
      case Kind::content:
        EXPECT_EQ(next, 0u) << "content behind calls";
        content += event.text;
        break;
      case Kind::call_begin:
        EXPECT_FALSE(open);
        EXPECT_EQ(event.call, next);
        call = {"", event.text, ""};
        open = true;
        ++next;
        break;
      case Kind::call_arguments:
        EXPECT_TRUE(open);
        EXPECT_EQ(event.call + 1, next);
        call.arguments += event.text;
        break;
      case Kind::call_end:
        EXPECT_TRUE(open);
        calls.push_back(call);
        open = false;
        break;
      case Kind::call_dropped:
        EXPECT_TRUE(open);
        open = false;
        dropped_any = true;
        break;
      case Kind::block_end:
        EXPECT_FALSE(open);
        break;
    }
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(reasoning, reading.reply.reasoning);
  EXPECT_EQ(content, reading.reply.content);
  ASSERT_EQ(calls.size(), reading.reply.tool_calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].name, reading.reply.tool_calls[i].name);
    EXPECT_EQ(calls[i].arguments, reading.reply.tool_calls[i].arguments);
  }
  if (dropped_any) {
    EXPECT_TRUE(reading.reply.malformed_tools);
  }
}

void expect_same(const ParsedReply& a, const ParsedReply& b) {
  EXPECT_EQ(a.reasoning, b.reasoning);
  EXPECT_EQ(a.content, b.content);
  EXPECT_EQ(a.tool_calls.size(), b.tool_calls.size());
  EXPECT_EQ(a.tool_block, b.tool_block);
  EXPECT_EQ(a.malformed_tools, b.malformed_tools);
  EXPECT_EQ(a.repaired_tools, b.repaired_tools);
  EXPECT_EQ(a.tool_fault, b.tool_fault);
  EXPECT_EQ(a.tool_fault_reason, b.tool_fault_reason);
}

class ReplyReaderCases : public testing::TestWithParam<ReplyCase> {};

TEST_P(ReplyReaderCases, IsReadAsExpected) {
  const ReplyCase& expected = GetParam();
  const std::string text = with_sentinel(expected.text);
  const Reading whole = read_parts({text}, expected);
  EXPECT_EQ(whole.reply.reasoning, expected.reasoning);
  EXPECT_EQ(whole.reply.content, expected.content);
  std::vector<std::pair<std::string, std::string>> calls;
  for (const ToolCall& call : whole.reply.tool_calls) calls.emplace_back(call.name, call.arguments);
  EXPECT_EQ(calls, expected.calls);
  EXPECT_EQ(whole.reply.tool_fault, expected.fault) << whole.reply.tool_fault_reason;
  EXPECT_EQ(whole.reply.malformed_tools, expected.fault != ToolFault::none);
  EXPECT_EQ(whole.reply.repaired_tools, expected.repaired);
  EXPECT_THAT(text, testing::HasSubstr(whole.reply.tool_block));
  expect_consistent(whole);
  if (!expected.cut) expect_same(parse_reply(text, expected.think, expected.tools), whole.reply);
}

TEST_P(ReplyReaderCases, EverySplitGivesTheSame) {
  const ReplyCase& reply = GetParam();
  const std::string text = with_sentinel(reply.text);
  const std::string_view view = text;
  const Reading whole = read_parts({view}, reply);
  const auto expect_as_whole = [&](const std::vector<std::string_view>& parts) {
    const Reading reading = read_parts(parts, reply);
    ASSERT_EQ(reading.events, whole.events);
    expect_same(reading.reply, whole.reply);
  };
  expect_as_whole(bytes_of(view));
  for (size_t i = 0; i <= text.size(); ++i) {
    expect_as_whole({view.substr(0, i), view.substr(i)});
    if (i < 600) {
      for (const size_t length : {1, 2, 5}) {
        expect_as_whole(
            {view.substr(0, i), view.substr(i, length), view.substr(std::min(text.size(), i + length))});
      }
    }
    if (HasFatalFailure()) FAIL() << "split at " << i;
  }
}

/// What the reader says of itself may not depend on the split either.
TEST_P(ReplyReaderCases, StateDependsOnTheTextAlone) {
  const ReplyCase& reply = GetParam();
  const std::string text = with_sentinel(reply.text);
  ReplyReader stepwise({reply.think, reply.tools});
  for (size_t i = 0; i < std::min<size_t>(text.size(), 1500); ++i) {
    stepwise.push(std::string_view(text).substr(i, 1));
    ReplyReader at_once({reply.think, reply.tools});
    at_once.push(std::string_view(text).substr(0, i + 1));
    ASSERT_EQ(stepwise.phase(), at_once.phase()) << text.substr(0, i + 1);
    ASSERT_EQ(stepwise.in_reasoning(), at_once.in_reasoning()) << i;
    ASSERT_EQ(stepwise.in_block(), at_once.in_block()) << i;
    ASSERT_EQ(stepwise.block_closed(), at_once.block_closed()) << i;
    ASSERT_EQ(stepwise.block_broken(), at_once.block_broken()) << i;
  }
}

std::string case_name(const testing::TestParamInfo<ReplyCase>& info) {
  std::string name;
  for (const char c : info.param.name) name.push_back(std::isalnum(static_cast<unsigned char>(c)) ? c : '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(WellFormed, ReplyReaderCases, testing::ValuesIn(well_formed_replies()), case_name);
INSTANTIATE_TEST_SUITE_P(Misspelled, ReplyReaderCases, testing::ValuesIn(misspelled_replies()), case_name);
INSTANTIATE_TEST_SUITE_P(Doubtful, ReplyReaderCases, testing::ValuesIn(doubtful_replies()), case_name);

TEST(ReplyReader, PassesTextOnAsSoonAsItIsCertain) {
  ReplyReader reader({true, true});
  EXPECT_THAT(reader.push("wh"), testing::ElementsAre(ReplyEvent{Kind::reasoning, 0, "wh"}));
  EXPECT_THAT(reader.push("y </thi"), testing::ElementsAre(ReplyEvent{Kind::reasoning, 0, "y"}));
  EXPECT_TRUE(reader.in_reasoning());
  EXPECT_FALSE(reader.reasoning_closed());
  EXPECT_THAT(reader.push("nk>Hi \n"),
              testing::ElementsAre(ReplyEvent{Kind::reasoning, 0, " "}, ReplyEvent{Kind::content, 0, "Hi"}));
  EXPECT_TRUE(reader.reasoning_closed());
  EXPECT_TRUE(reader.push("\n<｜DSML｜tool").empty());
  EXPECT_FALSE(reader.in_block());
  EXPECT_TRUE(reader.push("_calls>\n<｜DSML｜invoke name=\"f\"").empty());
  EXPECT_TRUE(reader.in_block());
  EXPECT_THAT(reader.push(">"), testing::ElementsAre(ReplyEvent{Kind::call_begin, 0, "f"},
                                                     ReplyEvent{Kind::call_arguments, 0, "{"}));
  EXPECT_THAT(reader.push("<｜DSML｜parameter name=\"k\" string=\"true\">a\nb</"),
              testing::ElementsAre(ReplyEvent{Kind::call_arguments, 0, R"("k":"a\nb)"}));
  EXPECT_THAT(reader.push("c\xE4\xB8"), testing::ElementsAre(ReplyEvent{Kind::call_arguments, 0, "</c"}));
  EXPECT_THAT(reader.push("\x96&l"), testing::ElementsAre(ReplyEvent{Kind::call_arguments, 0, "世"}));
  EXPECT_THAT(reader.push("t;</｜DSML｜parameter>"),
              testing::ElementsAre(ReplyEvent{Kind::call_arguments, 0, "&lt;\""}));
  EXPECT_THAT(reader.push("<｜DSML｜parameter name=\"n\" string=\"false\">[ 1, "),
              testing::ElementsAre(ReplyEvent{Kind::call_arguments, 0, ",\"n\":[1,"}));
  EXPECT_THAT(
      reader.push("2]</｜DSML｜parameter></｜DSML｜invoke>"),
      testing::ElementsAre(ReplyEvent{Kind::call_arguments, 0, "2]}"}, ReplyEvent{Kind::call_end, 0, ""}));
  EXPECT_FALSE(reader.block_closed());
  EXPECT_THAT(reader.push("</｜DSML｜tool_calls>x"),
              testing::ElementsAre(ReplyEvent{Kind::block_end, 0, ""}));
  EXPECT_TRUE(reader.block_closed());
  EXPECT_FALSE(reader.in_block());
  EXPECT_TRUE(reader.finish(false).empty());
}

TEST(ReplyReader, ADroppedCallIsAnnounced) {
  ReplyReader reader({false, true});
  reader.push(
      "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"k\" string=\"false\">");
  EXPECT_THAT(reader.push("nul1"), testing::ElementsAre(ReplyEvent{Kind::call_arguments, 0, "nul"},
                                                        ReplyEvent{Kind::call_dropped, 0, ""}));
  EXPECT_TRUE(reader.in_block());
  EXPECT_TRUE(reader.push("</｜DSML｜parameter></｜DSML｜invoke>").empty());
  EXPECT_THAT(
      reader.push("<｜DSML｜invoke name=\"g\">"),
      testing::ElementsAre(ReplyEvent{Kind::call_begin, 1, "g"}, ReplyEvent{Kind::call_arguments, 1, "{"}));
  EXPECT_THAT(reader.push("?"), testing::ElementsAre(ReplyEvent{Kind::call_dropped, 1, ""}));
  EXPECT_TRUE(reader.block_broken());
  reader.finish(false);
  EXPECT_EQ(reader.result().tool_fault, ToolFault::invalid_json);
  EXPECT_EQ(reader.result().tool_fault_reason, "The value of parameter \"k\" of \"f\" is not valid JSON.");
}

// The tag of a call that </think> cuts short was found again and again.
TEST(ReplyReader, AnUnfinishedTagBeforeTheEndOfReasoningIsUsedUp) {
  const std::string text = "a</think>b<think>c\n\n<｜DSML｜invoke</think>d<｜DSML｜invoke</think>e";
  for (const bool think : {true, false}) {
    ReplyReader whole({.think = think, .tools = true});
    whole.push(text);
    whole.finish(false);
    EXPECT_EQ(whole.result().content.find("DSML"), std::string::npos) << whole.result().content;
    for (size_t at = 1; at < text.size(); ++at) {
      ReplyReader split({.think = think, .tools = true});
      split.push(text.substr(0, at));
      split.push(text.substr(at));
      split.finish(false);
      EXPECT_EQ(split.result().content, whole.result().content) << at;
      EXPECT_EQ(split.result().reasoning, whole.result().reasoning) << at;
    }
  }
}

TEST(ReplyReader, ALostQuoteDoesNotReachIntoTheNextTag) {
  ReplyReader reader({false, true});
  EXPECT_TRUE(
      reader.push(with_sentinel("<{}tool_calls><{}invoke name=\"f>\n<{}parameter name=\"k\" >v")).empty());
  EXPECT_TRUE(reader.block_broken());
}

TEST(ReplyReader, ReplaysOnlyWhatIsWellFormed) {
  const auto block_of = [](const std::string& text) {
    return parse_reply(with_sentinel(text), false, true).tool_block;
  };
  const std::string block = one_call(string_parameter("c", "ls"));
  EXPECT_EQ(block_of("a \n" + block), with_sentinel(" \n" + block));
  EXPECT_EQ(block_of("a" + block + "b"), with_sentinel(block));
  EXPECT_EQ(block_of("a" + block.substr(0, block.size() - 3)), "");
  EXPECT_EQ(block_of("a" + one_call(json_parameter("c", "ls"))), "");
}

/// The phase after each part.
TEST(ReplyReader, SamplingPhases) {
  constexpr auto kFree = SamplingPhase::free;
  constexpr auto kStructure = SamplingPhase::structure;
  constexpr auto kPayload = SamplingPhase::payload;
  const std::vector<std::pair<std::string, SamplingPhase>> parts = {
      {"why", kFree},
      {"</think>Hi\n\n<｜DSML｜tool_call", kFree},
      {"s", kStructure},
      {">\n", kStructure},
      {"<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\"", kStructure},
      {">", kPayload},
      {"rm <", kPayload},
      {"<", kPayload},
      {" x &lt;/", kPayload},
      {"｜DSML｜parameter>", kPayload},
      {"<", kPayload},
      {"/", kStructure},
      {"b", kPayload},
      {"</｜DSML｜param", kStructure},
      {"eter>", kStructure},
      {"\n<｜DSML｜parameter name=\"b\" string=\"false\">", kStructure},
      {"[1, ", kStructure},
      {"\"", kPayload},
      {"a\\\"</", kPayload},
      {"\"", kStructure},
      {"]</｜DSML｜parameter>", kStructure},
      {"</｜DSML｜invoke>\n", kStructure},
      {"</｜DSML｜tool_calls>", kFree},
      {"x", kFree},
  };
  ReplyReader reader({true, true});
  std::string text;
  for (const auto& [part, phase] : parts) {
    reader.push(part);
    text += part;
    EXPECT_EQ(reader.phase(), phase) << text;
  }
  ReplyReader misspelled({false, true});
  misspelled.push(with_sentinel(
      "<{}tool_calls><{}invoke name=\"f\"><{}parameter name=\"k\" string=\"true\">ls</DSML｜parameter>"));
  EXPECT_EQ(misspelled.phase(), kStructure) << "whether the value ends is open";
  misspelled.push(" x");
  EXPECT_EQ(misspelled.phase(), kPayload);
  ReplyReader without_tools({false, false});
  without_tools.push("<｜DSML｜tool_calls>");
  EXPECT_EQ(without_tools.phase(), kFree);
}

std::string random_reply(std::mt19937& random) {
  static const std::vector<std::string> pieces = {"<think>",
                                                  "</think>",
                                                  "\n\n",
                                                  "\n",
                                                  " ",
                                                  "`",
                                                  "```",
                                                  "<{}tool_calls>",
                                                  "</{}tool_calls>",
                                                  "<{}invoke name=\"f\">",
                                                  "<{}invoke name='g' >",
                                                  "</{}invoke>",
                                                  "<{}parameter name=\"k\" string=\"true\">",
                                                  "<{}parameter name=\"j\" string=\"false\">",
                                                  "<{}parameter name=\"o\">",
                                                  "</{}parameter>",
                                                  "</{}parameter >",
                                                  "<<{}invoke",
                                                  "<DSML｜tool_calls>",
                                                  "</DSML｜parameter>",
                                                  "<tool_calls>",
                                                  "</tool_calls>",
                                                  "<invoke name=\"h\">",
                                                  "</invoke>",
                                                  "<parameter name=\"p\">",
                                                  "</parameter>",
                                                  "<",
                                                  ">",
                                                  "/",
                                                  "&lt;/{}parameter>",
                                                  "&lt;",
                                                  "\"",
                                                  "{\"a\":",
                                                  "[1,",
                                                  "]",
                                                  "}",
                                                  "12",
                                                  "\\u12",
                                                  "text",
                                                  "世",
                                                  "🙂",
                                                  "\xE2\x96",
                                                  "\xFF",
                                                  std::string(1, '\0')};
  std::string text;
  for (size_t count = random() % 40; count > 0; --count) text += pieces[random() % pieces.size()];
  return with_sentinel(text);
}

/// Well-formed more often than not, then damaged here and there.
std::string damaged_reply(std::mt19937& random) {
  std::string text = "why</think>Text";
  std::string calls;
  for (size_t count = random() % 3; count > 0; --count) {
    std::string parameters;
    for (size_t i = random() % 3; i > 0; --i) {
      const std::string name = std::string(1, static_cast<char>('a' + i));
      parameters +=
          random() % 2 == 0 ? string_parameter(name, "v < 世 ") : json_parameter(name, "{\"x\": [1, \"y\"]}");
    }
    calls += invoke("f", parameters);
  }
  text = with_sentinel(text + tool_block(calls));
  for (size_t count = random() % 4; count > 0; --count) {
    const size_t at = random() % text.size();
    const size_t length = random() % 4;
    if (random() % 2 == 0) {
      text.erase(at, length);
    } else {
      text.insert(at, text.substr(at, length));
    }
    if (text.empty()) break;
  }
  return text;
}

TEST(ReplyReader, RandomRepliesDoNotDependOnTheSplit) {
  std::mt19937 random(5);
  for (int round = 0; round < 6000; ++round) {
    ReplyCase reply;
    reply.think = random() % 2 == 0;
    reply.cut = random() % 2 == 0;
    const std::string text = round % 2 == 0 ? random_reply(random) : damaged_reply(random);
    const std::string_view view = text;
    SCOPED_TRACE(text);
    const Reading whole = read_parts({view}, reply, false);
    ASSERT_NO_FATAL_FAILURE(expect_consistent(whole));
    ASSERT_THAT(whole.reply.content, testing::Not(testing::HasSubstr("<｜DSML｜tool_calls")));
    const Reading bytewise = read_parts(bytes_of(view), reply, false);
    ASSERT_EQ(bytewise.events, whole.events);
    expect_same(bytewise.reply, whole.reply);
    std::vector<std::string_view> parts;
    for (size_t at = 0; at < view.size();) {
      const size_t length = 1 + random() % 12;
      parts.push_back(view.substr(at, length));
      at += length;
    }
    ASSERT_EQ(read_parts(parts, reply, false).events, whole.events);
    ASSERT_FALSE(HasFailure());
  }
}

/// Whatever a call holds, written and read back it is the same.
TEST(ReplyReader, WhatIsWrittenIsReadBack) {
  const std::vector<std::string> pieces = {"</｜DSML｜parameter>",
                                           "</DSML｜parameter>",
                                           "</parameter>",
                                           "</｜DSML｜param",
                                           "<",
                                           "</",
                                           "&lt;",
                                           "&amp;",
                                           "&",
                                           "<think>",
                                           "</think>",
                                           "\n",
                                           " ",
                                           "\"",
                                           "\\",
                                           "{",
                                           "}]",
                                           "世",
                                           "🙂",
                                           "text",
                                           "<<EOF",
                                           "\t",
                                           "<｜DSML｜tool_calls>"};
  std::mt19937 random(8);
  const auto any_text = [&] {
    std::string text;
    for (size_t count = random() % 12; count > 0; --count) text += pieces[random() % pieces.size()];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<ToolCall> calls;
    for (size_t count = 1 + random() % 3; count > 0; --count) {
      std::string arguments = "{";
      for (size_t i = random() % 4; i > 0; --i) {
        if (arguments.size() > 1) arguments += ",";
        arguments += json_quote("k" + std::to_string(i) + any_text()) + ":";
        const std::string text = json_quote(any_text());
        // The writer spells the closing tag otherwise inside JSON.
        const bool list = random() % 2 == 0 && text.find("</｜DSML｜parameter>") == std::string::npos;
        arguments += list ? "[" + text + ",{" + text + ":1.50}]" : text;
      }
      calls.push_back({"", "f&\"<" + std::to_string(count), arguments + "}"});
    }
    const std::string text = "Text" + render_tool_calls(calls);
    SCOPED_TRACE(text);
    const Reading reading = read_parts({std::string_view(text)}, {});
    EXPECT_EQ(reading.reply.content, "Text");
    EXPECT_FALSE(reading.reply.malformed_tools || reading.reply.repaired_tools);
    ASSERT_EQ(reading.reply.tool_calls.size(), calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      ASSERT_EQ(reading.reply.tool_calls[i].name, calls[i].name);
      ASSERT_EQ(reading.reply.tool_calls[i].arguments, calls[i].arguments);
    }
  }
}

/// Replies of a megabyte, one byte at a time.
TEST(ReplyReader, TimeIsLinear) {
  const auto repeated = [](std::string_view piece) {
    std::string text;
    while (text.size() < (1u << 20)) text += piece;
    return text;
  };
  const std::string open = "<{}tool_calls><{}invoke name=\"f\"><{}parameter name=\"k\" string=";
  const std::vector<std::string> texts = {
      repeated("text <a> & "),
      repeated(" \n"),
      repeated("<"),
      repeated("\n<{}tool_calls>x"),
      repeated("\n<{}tool_calls><{}invoke name=\"f\">"),
      repeated("</think><think>\n<{}tool_calls>"),
      repeated("`<{}tool_calls>` "),
      open + "\"true\">" + repeated("</{}parameter  </DSML｜parameter>   x &lt;/｜DSML"),
      open + "\"true\">" + repeated("</DSML｜parameter>    <{}invok"),
      open + "\"false\">" + repeated("["),
      open + "\"false\">[" + repeated("\"a</{}parameter>b\","),
      open + repeated("x "),
      "<{}tool_calls>" + repeated("<{}invoke name=\"f\"></{}invoke>"),
      "<tool_calls>" + repeated(" "),
  };
  for (const std::string& pattern : texts) {
    const std::string text = with_sentinel(pattern);
    const std::clock_t begin = std::clock();
    ReplyReader reader({text[0] != '`', true});
    for (const char c : text) reader.push({&c, 1});
    reader.finish(false);
    parse_reply(text, text[0] != '`', true);
    const double cpu_seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    // Some 0.1 s on one core, more with sanitizers; quadratic time would be minutes.
    EXPECT_LT(cpu_seconds, 8.0) << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace ds4::text
