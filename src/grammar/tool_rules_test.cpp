#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ds4/chat.hpp"
#include "grammar/test_grammar.hpp"

namespace ds4::grammar {
namespace {

using testing::HasSubstr;

std::shared_ptr<const Grammar> tools_grammar(const std::vector<ToolSignature>& tools, bool parallel = true) {
  auto grammar = Grammar::tool_calls(tools, parallel);
  EXPECT_TRUE(grammar) << (grammar ? "" : grammar.error().message);
  return grammar ? *grammar : nullptr;
}

std::string written(const std::vector<ToolCall>& calls) {
  return render_tool_calls(calls);
}

/// The bytes that must come next, as far as there is no choice.
std::string only_way(Constraint constraint) {
  std::string bytes;
  while (!constraint.complete()) {
    std::string next;
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      if (Constraint(constraint).accept_bytes({&c, 1})) next.push_back(c);
    }
    if (next.size() != 1) break;
    constraint.accept_bytes(next);
    bytes += next;
  }
  return bytes;
}

std::string call(const std::string& name, const std::string& arguments) {
  return written({{"", name, arguments}});
}

const ToolSignature kWeather{"get_weather", R"({"type":"object","properties":{
    "city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":14},
    "unit":{"type":"string","enum":["celsius","fahrenheit"]},
    "where":{"type":"object","properties":{"lat":{"type":"number"},"note":{"type":"string"}}},
    "tags":{"type":"array","items":{"type":"string"}},"any":{},"maybe":{"type":["string","null"]}},
    "required":["city"]})"};

TEST(ToolCalls, WhatTheWriterWritesIsTaken) {
  const auto grammar = tools_grammar({kWeather, {"ping", ""}});
  for (
      const std::string arguments :
      {R"({"city":"Rome"})", R"({"city":"a\nb <b> & </｜DSML｜invoke> \" é"})",
       R"({"city":"x </｜DSML｜parameter> y","days":14,"unit":"celsius"})",
       R"({"city":"","where":{"lat":1.5,"note":"</｜DSML｜parameter>"},"tags":["</｜DSML｜parameter>","b"]})",
       R"({"city":"c","any":"text"})", R"({"city":"c","any":[1,{"a":null}]})", R"({"city":"c","maybe":"m"})",
       R"({"city":"c","maybe":null})"}) {
    EXPECT_TRUE(takes(grammar, call("get_weather", arguments)))
        << arguments << " " << taken_bytes(grammar, call("get_weather", arguments));
  }
  EXPECT_TRUE(takes(grammar, call("ping", "{}")));
  EXPECT_TRUE(takes(grammar, written({{"", "ping", "{}"}, {"", "get_weather", R"({"city":"x"})"}})));
}

TEST(ToolCalls, WhatBreaksTheSchemaIsNot) {
  const auto grammar = tools_grammar({kWeather});
  for (const std::string arguments :
       {"{}", R"({"days":1})", R"({"city":1})", R"({"city":"c","days":15})", R"({"city":"c","days":"1"})",
        R"({"city":"c","unit":"kelvin"})", R"({"city":"c","maybe":1})", R"({"city":"c","where":{"alt":1}})",
        R"({"city":"c","other":1})", R"({"unit":"celsius","city":"c"})", R"({"city":"c","city":"d"})"}) {
    EXPECT_FALSE(takes(grammar, call("get_weather", arguments))) << arguments;
  }
  EXPECT_FALSE(takes(grammar, call("get_weathe", R"({"city":"c"})")));
  EXPECT_FALSE(takes(grammar, call("other", R"({"city":"c"})")));
  EXPECT_FALSE(takes(grammar, "Hello"));
  EXPECT_FALSE(takes(grammar, "\n\n<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>"));
  EXPECT_FALSE(takes(grammar, call("get_weather", R"({"city":"c"})") + "\n"));
}

TEST(ToolCalls, OneCallUnlessParallel) {
  const std::string two = written({{"", "ping", "{}"}, {"", "ping", "{}"}});
  EXPECT_TRUE(takes(tools_grammar({{"ping", ""}}, true), two));
  EXPECT_FALSE(takes(tools_grammar({{"ping", ""}}, false), two));
  EXPECT_TRUE(takes(tools_grammar({{"ping", ""}}, false), call("ping", "{}")));
}

TEST(ToolCalls, RestrictedStrings) {
  const auto grammar = tools_grammar({{"f", R"({"type":"object","properties":{
      "p":{"type":"string","pattern":"^[^x]*$"},"l":{"type":"string","minLength":2,"maxLength":4}}})"}});
  EXPECT_TRUE(takes(grammar, call("f", R"({"p":"ab</d>\n","l":"é</é"})")));
  EXPECT_FALSE(takes(grammar, call("f", R"({"p":"axb"})")));
  EXPECT_FALSE(takes(grammar, call("f", R"({"l":"a"})")));
  EXPECT_FALSE(takes(grammar, call("f", R"({"l":"abcde"})")));
  const auto text = tools_grammar({{"f", R"({"properties":{"t":{"type":"string"}}})"}});
  EXPECT_TRUE(takes(text, call("f", R"({"t":"</parameter> </｜DSML｜invoke>"})")));
  // Misspelled closing tags are read as such.
  for (const std::string tag :
       {"</DSML｜parameter>", "</｜DSML parameter>", "<//｜DSML｜parameter >", "</|DSML|parameter>"}) {
    EXPECT_FALSE(takes(text, call("f", R"({"t":")" + tag + "\"}"))) << tag;
    EXPECT_FALSE(takes(tools_grammar({{"f", "{}"}}), call("f", R"({"t":[")" + tag + "\"]}"))) << tag;
  }
  // A value with the closing tag would be read as another one.
  EXPECT_FALSE(takes(grammar, call("f", R"({"p":"</｜DSML｜parameter>"})")));
}

TEST(ToolCalls, FreeParameters) {
  for (const std::string schema :
       {R"({"type":"object"})", "{}", R"({"type":"object","additionalProperties":true})"}) {
    const auto grammar = tools_grammar({{"f", schema}});
    EXPECT_TRUE(takes(grammar, call("f", R"({"a b":"x","c":[1],"é":null})"))) << schema;
    EXPECT_TRUE(takes(grammar, call("f", "{}"))) << schema;
  }
  const auto counts =
      tools_grammar({{"f", R"({"type":"object","additionalProperties":{"type":"integer"}})"}});
  EXPECT_TRUE(takes(counts, call("f", R"({"a":1})")));
  EXPECT_FALSE(takes(counts, call("f", R"({"a":"1"})")));
  EXPECT_FALSE(
      takes(tools_grammar({{"f", R"({"type":"object","properties":{}})"}}), call("f", R"({"a":1})")));
}

TEST(ToolCalls, NamesAreEscaped) {
  const auto grammar = tools_grammar({{"a<b>&\"c\"", R"({"properties":{"<k>":{"type":"null"}}})"}});
  EXPECT_TRUE(takes(grammar, call("a<b>&\"c\"", R"({"<k>":null})")));
}

TEST(ToolCalls, TagsAreForcedAndTheMarkIsAToken) {
  const auto grammar =
      tools_grammar({{"ping", R"({"properties":{"n":{"type":"integer"}},"required":["n"]})"}});
  Constraint constraint(grammar, nano_index());
  EXPECT_EQ(only_way(constraint),
            "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"ping\">\n<｜DSML｜parameter name=\"n\" "
            "string=\"false\">");
  const Tokenizer& tokenizer = text::nano_tokenizer();
  std::vector<uint64_t> mask(nano_index()->mask_words());
  bool marked = false;
  for (const Token token : tokenizer.encode_rendered(call("ping", R"({"n":12})"))) {
    constraint.allowed(mask);
    EXPECT_TRUE((mask[static_cast<size_t>(token) / 64] >> (token % 64)) & 1) << tokenizer.decode(token);
    EXPECT_TRUE(constraint.accept(token)) << tokenizer.decode(token);
    marked = marked || token == tokenizer.special().dsml;
  }
  EXPECT_TRUE(marked);
  EXPECT_TRUE(constraint.complete());
  EXPECT_TRUE(constraint.accept(tokenizer.special().eos));
  EXPECT_TRUE(constraint.ended());
  EXPECT_FALSE(constraint.accept(tokenizer.special().eos));
}

TEST(ToolCalls, NoTagLeadsToADeadEnd) {
  const auto grammar = tools_grammar({{"f", R"({"properties":{"v":{"anyOf":[{"type":"string"},
      {"type":"object","properties":{"x":false},"required":["x"]}]}},"required":["v"]})"}});
  EXPECT_THAT(only_way(Constraint(grammar, nano_index())),
              testing::EndsWith("<｜DSML｜parameter name=\"v\" string=\"true\">"));
}

TEST(ToolCalls, ErrorsNameTheTool) {
  const auto error = [](const std::vector<ToolSignature>& tools) {
    const auto grammar = Grammar::tool_calls(tools, true);
    return grammar ? "" : grammar.error().message;
  };
  EXPECT_EQ(error({{"f", R"({"type":"object","properties":{"a":{"not":{}}}})"}}),
            "tools: the parameters of 'f': the schema keyword 'not' is not supported at /properties/a");
  EXPECT_THAT(error({{"f", R"({"type":"string"})"}}), HasSubstr("no object"));
  EXPECT_THAT(error({{"f", "{"}}), HasSubstr("not valid JSON"));
  EXPECT_THAT(error({}), HasSubstr("none"));
  EXPECT_THAT(error({{"f", R"({"type":"object","properties":{"a":false},"required":["a"]})"}}),
              HasSubstr("no value"));
}

}  // namespace
}  // namespace ds4::grammar
