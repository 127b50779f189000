#include "grammar/grammar.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ds4/chat.hpp"
#include "grammar/test_grammar.hpp"

namespace ds4::grammar {
namespace {

using testing::HasSubstr;

/// Texts that a schema must take, and texts that it must not.
void expect_schema(std::string_view schema, const std::vector<std::string>& good,
                   const std::vector<std::string>& bad, bool strict = false) {
  const auto grammar = schema_grammar(schema, strict);
  ASSERT_NE(grammar, nullptr);
  for (const std::string& text : good) {
    EXPECT_TRUE(takes(grammar, text))
        << schema << " must take " << text << ", takes " << taken_bytes(grammar, text) << " bytes";
  }
  for (const std::string& text : bad) EXPECT_FALSE(takes(grammar, text)) << schema << " takes " << text;
}

std::string error_of(std::string_view schema, bool strict = false) {
  const auto grammar = Grammar::json_schema(schema, strict);
  return grammar ? "" : grammar.error().message;
}

TEST(JsonObject, TakesObjectsOnly) {
  const auto grammar = Grammar::json_object().value();
  for (const std::string text :
       {"{}", "{ }", R"({"a":1})", R"({"a": [1, -2.5e3, true, null], "b": {"c": "d"}})",
        "{\n  \"a\": {\n    \"b\": [\n      1\n    ]\n  }\n}", R"({"\u00e9\ud83d\ude00\n\"\\\/":"é😀"})",
        R"({"":0})"}) {
    EXPECT_TRUE(takes(grammar, text)) << text << ": " << taken_bytes(grammar, text);
  }
  for (const std::string text : {"",
                                 "[]",
                                 "1",
                                 "\"a\"",
                                 " {}",
                                 "{} ",
                                 "{,}",
                                 R"({"a"})",
                                 R"({"a":})",
                                 R"({"a":1,})",
                                 R"({"a":01})",
                                 R"({"a":1.})",
                                 R"({"a":+1})",
                                 R"({"a":.5})",
                                 R"({"a":1e})",
                                 R"({"a":nul})",
                                 R"({'a':1})",
                                 R"({"a":"\x"})",
                                 R"({"a":"\ud83d"})",
                                 R"({"a":"\ude00"})",
                                 R"({"a":"\ud83dx"})",
                                 R"({"a":"\ud83d\ud83d"})",
                                 R"({"a":"\ud83d\u0041"})",
                                 "{\"a\":\"\n\"}",
                                 "{\"a\":\"\x1f\"}",
                                 "{\"a\":\"\xff\"}",
                                 "{\"a\":\"\xc3\"}",
                                 "{\"a\":\"\xed\xa0\x80\"}",
                                 "{\"a\":\"\xc0\x80\"}",
                                 "{\"a\":\"\xf4\x90\x80\x80\"}",
                                 "{  }",
                                 "{\n\n}",
                                 R"({"a":1]})"}) {
    EXPECT_FALSE(takes(grammar, text)) << text;
  }
}

TEST(JsonObject, WhiteSpaceEnds) {
  const auto grammar = Grammar::json_object().value();
  EXPECT_EQ(taken_bytes(grammar, "{\n" + std::string(1000, ' ')), 42u);
  EXPECT_EQ(taken_bytes(grammar, "{    "), 2u);
  EXPECT_EQ(taken_bytes(grammar, "{\"a\":" + std::string(100, '1')), 25u);
}

TEST(JsonObject, DepthIsBounded) {
  const auto grammar = Grammar::json_object().value();
  const auto nested = [](size_t depth) {
    std::string text = "{\"a\":";
    text.append(depth - 1, '[').append(depth - 1, ']');
    return text + "}";
  };
  EXPECT_TRUE(takes(grammar, nested(64)));
  EXPECT_FALSE(takes(grammar, nested(65)));
  Constraint constraint(grammar, nano_index());
  EXPECT_TRUE(constraint.accept_bytes("{\"a\":" + std::string(63, '[')));
  std::vector<uint64_t> mask(nano_index()->mask_words());
  constraint.allowed(mask);
  const auto bit = [&](const char* text) {
    const auto id = static_cast<size_t>(text::nano_tokenizer().find(text));
    return (mask[id / 64] >> (id % 64)) & 1;
  };
  EXPECT_EQ(bit("["), 0u);
  EXPECT_EQ(bit("{"), 0u);
  EXPECT_EQ(bit("]"), 1u);
  EXPECT_EQ(bit("1"), 1u);
}

TEST(JsonSchema, Types) {
  expect_schema(R"({"type":"null"})", {"null"}, {"0", "\"null\"", "nul"});
  expect_schema(R"({"type":"boolean"})", {"true", "false"}, {"null", "1"});
  expect_schema(R"({"type":"integer"})", {"0", "-7", "12345678901234567890"},
                {"1.5", "1e2", "01", "--1", ""});
  expect_schema(R"({"type":"number"})", {"0", "-7.25", "1e9", "1E-9", "0.001"}, {"1.", ".1", "\"1\""});
  expect_schema(R"({"type":"string"})", {R"("")", R"("a\"b")"}, {"a", R"("a)", R"("a"b")"});
  expect_schema(R"({"type":"array"})", {"[]", "[1,\"a\",[{}]]", "[ 1 ]"}, {"{}", "[1,]", "[,1]"});
  expect_schema(R"({"type":"object"})", {"{}", R"({"x":[1]})"}, {"[]", "1"});
  expect_schema(R"({"type":["string","null"]})", {R"("a")", "null"}, {"1", "true"});
  expect_schema(R"({"type":"string","nullable":true})", {R"("a")", "null"}, {"1"});
  expect_schema("{}", {"1", "null", "{}", R"(["a"])"}, {"", "a"});
  expect_schema("true", {"1", R"({"a":1})"}, {"a"});
}

TEST(JsonSchema, ObjectsKeepTheOrderOfTheSchema) {
  const std::string schema = R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"},
      "c":{"type":"boolean"}},"required":["a"]})";
  expect_schema(
      schema,
      {R"({"a":"x"})", R"({"b":1,"a":"x"})", R"({"b": 1, "a": "x", "c": true})", R"({"a":"x","c":false})"},
      {"{}", R"({"b":1})", R"({"a":"x","b":1})", R"({"a":1})", R"({"a":"x","d":1})", R"({"a":"x","a":"y"})",
       R"({,"a":"x"})", R"({"a":"x",})"});
  expect_schema(schema, {R"({"b":1,"a":"x","c":true})"}, {R"({"a":"x"})", R"({"b":1,"a":"x"})"}, true);
  expect_schema(R"({"properties":{"a":{}}})", {"{}", R"({"a":[1]})"}, {"1", R"({"b":1})"});
}

TEST(JsonSchema, AdditionalProperties) {
  expect_schema(R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":true})",
                {"{}", R"({"a":1})", R"({"b":"x"})", R"({"a":1,"b":2,"aa":[]})"},
                {R"({"a":"x"})", R"({"b":1,"a":"x"})", R"({"b":1,"a":1})"});
  expect_schema(R"({"type":"object","additionalProperties":{"type":"integer"}})", {"{}", R"({"x":1,"y":2})"},
                {R"({"x":"1"})"});
  expect_schema(R"({"type":"object","additionalProperties":false})", {"{}", "{ }"}, {R"({"x":1})"});
  expect_schema(R"({"type":"object","required":["q"]})", {R"({"q":1})"}, {"{}"});
  expect_schema(R"({"type":"object","patternProperties":{"^x-":{"type":"integer"}}})", {"{}", R"({"x-a":1})"},
                {R"({"y":1})", R"({"x-a":"1"})"});
  expect_schema(R"({"type":"object","propertyNames":{"enum":["a","b"]},"additionalProperties":true})",
                {R"({"a":1,"b":2})"}, {R"({"c":1})"});
  expect_schema(
      R"({"type":"object","minProperties":1,"maxProperties":2,"additionalProperties":{"type":"null"}})",
      {R"({"a":null})", R"({"a":null,"b":null})"}, {"{}", R"({"a":null,"b":null,"c":null})"});
  expect_schema(R"({"type":"object","properties":{"a":{},"b":{}},"minProperties":1})",
                {R"({"a":1})", R"({"b":1})"}, {"{}"});
}

TEST(JsonSchema, ConstantsAndEnumerations) {
  expect_schema(R"({"enum":["red","reddish",1,null,1.5,true,{"a":[1]}]})",
                {R"("red")", R"("reddish")", "1", "null", "1.5", "true", R"({"a":[1]})"},
                {R"("re")", R"("blue")", "2", "1.", "false", "{}"});
  expect_schema(R"({"const":"a\nb\"é"})", {"\"a\\nb\\\"é\""}, {R"("a")"});
  expect_schema(R"({"type":"string","enum":["a",1,"bcd"],"maxLength":2})", {R"("a")"}, {"1", R"("bcd")"});
  expect_schema(R"({"enum":[1,5,10],"minimum":5})", {"5", "10"}, {"1"});
  EXPECT_THAT(error_of(R"({"type":"string","enum":[1,2]})"), HasSubstr("no value"));
}

TEST(JsonSchema, Arrays) {
  expect_schema(R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
                {"[1,2]", "[1, 2, 3]"}, {"[]", "[1]", "[1,2,3,4]", "[1,2,]", "[1,\"a\"]"});
  expect_schema(R"({"type":"array","items":{"type":"integer"},"maxItems":0})", {"[]", "[ ]"}, {"[1]"});
  expect_schema(R"({"type":"array","maxItems":1})", {"[]", "[[]]"}, {"[1,1]"});
  expect_schema(R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1,2]"}, {"[1,]", "[1, ]", "[,]"});
  expect_schema(R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
                {"[]", "[1]", R"([1,"a"])"}, {R"(["a"])", R"([1,"a",2])", "[1,]"});
  expect_schema(R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"null"},"minItems":3})",
                {"[1,null,null]", "[1,null,null,null]"}, {"[1,null]", "[1]", "[1,1,1]"});
  expect_schema(R"({"type":"array","items":[{"type":"integer"}],"additionalItems":{"type":"null"}})",
                {"[1,null]", "[]"}, {"[null]"});
  EXPECT_THAT(error_of(R"({"type":"array","minItems":3,"maxItems":2})"), HasSubstr("no value"));
}

TEST(JsonSchema, StringLengthsCountCharacters) {
  expect_schema(R"({"type":"string","minLength":2,"maxLength":3})",
                {R"("ab")", R"("é😀x")", R"("\ud83d\ude00\n")"},
                {R"("a")", R"("abcd")", R"("\ud83d\ude00")"});
  expect_schema(R"({"type":"string","minLength":1})", {R"("a")", R"("abcdefgh")"}, {R"("")"});
  expect_schema(R"({"type":"string","pattern":"^(ab)*$","maxLength":3})", {R"("")", R"("ab")"}, {R"("aba")"});
}

TEST(JsonSchema, Patterns) {
  expect_schema(R"({"type":"string","pattern":"^[A-Z]{2}\\d+$"})", {R"("AB1")", R"("XY123")"},
                {R"("A1")", R"("AB")", R"("AB1 ")", R"("aB1")"});
  expect_schema(R"({"type":"string","pattern":"foo|^b.r$"})", {R"("xfooy")", R"("bar")", R"("b\"r")"},
                {R"("b\nr")", R"("xbar")", R"("fo")"});
  expect_schema(R"({"pattern":"^\\S+@\\S+$"})", {R"("a@b")"}, {R"("a b@c")", R"("@")"});
  expect_schema(R"({"pattern":"^[^é]+$"})", {R"("è")", R"("ê😀")"}, {R"("é")", R"("xé")"});
  expect_schema(R"({"pattern":"^(?:a|bc){2,3}?$"})", {R"("aa")", R"("bcabc")"}, {R"("a")", R"("aaaa")"});
  expect_schema(R"({"pattern":"^[\\u00e9\\x41\\-\\]]$"})", {R"("é")", R"("A")", R"("-")", R"("]")"},
                {R"("B")"});
  for (const std::string pattern :
       {"(?=a)b", "\\\\bword", "(a)\\\\1", "\\\\p{L}", "a{2,1}", "(", "[a", "*a"}) {
    EXPECT_THAT(error_of(R"({"properties":{"p":{"pattern":")" + pattern + R"("}}})"),
                testing::AllOf(HasSubstr("'pattern'"), HasSubstr("/properties/p")))
        << pattern;
  }
}

TEST(JsonSchema, Formats) {
  expect_schema(
      R"({"format":"date"})", {R"("2024-02-29")", R"("1999-12-31")", R"("2000-02-29")"},
      {R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")", R"("2024-13-01")", R"("24-01-01")"});
  expect_schema(R"({"format":"time"})", {R"("23:59:59Z")", R"("00:00:00.123+01:00")"},
                {R"("24:00:00Z")", R"("12:00:00")"});
  expect_schema(R"({"format":"date-time"})", {R"("2024-01-31T12:00:00Z")"}, {R"("2024-01-31 12:00:00Z")"});
  expect_schema(R"({"format":"duration"})", {R"("P1Y2M3DT4H")", R"("PT5M")", R"("P3W")", R"("P1D")"},
                {R"("P")", R"("PT")", R"("1D")", R"("P1DT")"});
  expect_schema(R"({"format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"},
                {R"("123e4567e89b12d3a456426614174000")"});
  expect_schema(R"({"format":"ipv4"})", {R"("127.0.0.1")", R"("255.255.255.255")"},
                {R"("256.0.0.1")", R"("01.0.0.1")", R"("1.2.3")"});
  expect_schema(R"({"format":"ipv6"})", {R"("2001:db8:0:0:0:0:0:1")"}, {R"("::g")"});
  expect_schema(R"({"format":"hostname"})", {R"("example.com")", R"("a")"}, {R"("-a.com")", R"("a..b")"});
  expect_schema(R"({"format":"email"})", {R"("jane.doe@example.com")"},
                {R"("jane")", R"("a@b")", R"("@b.c")"});
  expect_schema(R"({"format":"uri"})", {R"("https://example.com/a?b=c#d")", R"("http://localhost:8080")"},
                {R"("example.com")", R"("a b://c")"});
  expect_schema(R"({"type":"integer","format":"int32"})", {"1"}, {"1.5"});
  EXPECT_THAT(error_of(R"({"format":"json-pointer"})"), HasSubstr("'format'"));
}

TEST(JsonSchema, NumberBounds) {
  expect_schema(R"({"type":"integer","minimum":-5,"maximum":12})", {"-5", "0", "9", "12"},
                {"-6", "13", "100", "-0", "-10"});
  expect_schema(R"({"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":100})", {"1", "99"},
                {"0", "100", "-1"});
  expect_schema(R"({"type":"number","minimum":0,"maximum":1})", {"0", "1", "0.5", "1.0", "0.000001", "1.000"},
                {"1.1", "-0.1", "2", "1e0", "1.0001", "-0"});
  expect_schema(R"({"type":"number","exclusiveMinimum":-1.25,"exclusiveMaximum":2.5})",
                {"-1.2", "-1.2499", "2.4999", "-0.5", "2"}, {"-1.25", "-1.250", "-1.3", "2.5", "2.51", "3"});
  expect_schema(R"({"type":"integer","minimum":1e3})", {"1000", "99999"}, {"999", "0", "-1000"});
  expect_schema(R"({"type":"number","maximum":0.1})", {"0.1", "0.09", "-3", "0"}, {"0.11", "1"});
  expect_schema(R"({"type":"integer","multipleOf":15,"minimum":10})", {"15", "30", "1500"},
                {"0", "10", "16", "-15"});
  expect_schema(R"({"type":"number","multipleOf":2})", {"0", "-4"}, {"1", "2.0"});
  expect_schema(R"({"type":"integer","minimum":0,"exclusiveMinimum":true})", {"1"}, {"0"});
  EXPECT_THAT(error_of(R"({"type":"integer","minimum":2,"maximum":1})"), HasSubstr("no value"));
  EXPECT_THAT(error_of(R"({"type":"number","multipleOf":0.01})"), HasSubstr("'multipleOf'"));
}

TEST(JsonSchema, Combinations) {
  expect_schema(R"({"anyOf":[{"type":"string"},{"type":"integer"},{"type":"null"}]})",
                {R"("a")", "1", "null"}, {"1.5", "true"});
  expect_schema(R"({"oneOf":[{"type":"object","properties":{"kind":{"const":"a"},"x":{"type":"integer"}},
      "required":["kind","x"]},{"type":"object","properties":{"kind":{"const":"b"}},"required":["kind"]}]})",
                {R"({"kind":"a","x":1})", R"({"kind":"b"})"}, {R"({"kind":"b","x":1})", R"({"kind":"a"})"});
  expect_schema(R"({"allOf":[{"properties":{"a":{"type":"number"}},"required":["a"]},
      {"properties":{"b":{},"a":{"minimum":3,"type":"integer"}}}]})",
                {R"({"a":3})", R"({"a":3,"b":1})"}, {R"({"a":2})", R"({"a":3.5})", R"({"b":1})"});
  expect_schema(
      R"({"type":"object","properties":{"a":{},"b":{}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
      {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}, {"{}"});
  expect_schema(R"({"anyOf":[{"enum":["ab"]},{"pattern":"^a[0-9]$"},{"const":"abc"}]})",
                {R"("ab")", R"("a1")", R"("abc")"}, {R"("a")"});
  expect_schema(R"({"anyOf":[false,{"type":"null"}]})", {"null"}, {"1"});
}

TEST(JsonSchema, References) {
  expect_schema(R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},
      "next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/n"})",
                {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
                {R"({"v":1})", R"({"v":1,"next":{}})"});
  expect_schema(R"({"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#"}}}})",
                {"{}", R"({"c":[{},{"c":[]}]})"}, {R"({"c":[1]})"});
  expect_schema(R"({"definitions":{"a/b c":{"type":"null"}},"$ref":"#/definitions/a~1b%20c"})", {"null"},
                {"1"});
  // A hundred levels are no more than the schema asks for.
  std::string nested;
  for (int i = 0; i < 200; ++i) nested += R"({"c":[)";
  nested += "{}";
  for (int i = 0; i < 200; ++i) nested += "]}";
  expect_schema(R"({"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#"}}}})", {nested},
                {});
}

TEST(JsonSchema, ErrorsNameKeywordAndPlace) {
  EXPECT_EQ(error_of(R"({"type":"object","properties":{"a":{"not":{}}}})"),
            "response_format: the schema keyword 'not' is not supported at /properties/a");
  EXPECT_EQ(error_of(R"({"type":"array","uniqueItems":true})"),
            "response_format: the schema keyword 'uniqueItems' is not supported at the top");
  for (const std::string schema : {R"({"if":{}})",
                                   R"({"type":"strin"})",
                                   R"({"type":7})",
                                   R"({"properties":[]})",
                                   R"({"required":"a"})",
                                   R"({"enum":[]})",
                                   R"({"enum":1})",
                                   R"({"minLength":-1})",
                                   R"({"minLength":1.5})",
                                   R"({"minimum":"1"})",
                                   R"({"items":3})",
                                   R"({"prefixItems":{}})",
                                   R"({"anyOf":{}})",
                                   R"({"allOf":1})",
                                   R"({"$ref":1})",
                                   R"({"$ref":"#/nowhere"})",
                                   R"({"$ref":"http://example.com"})",
                                   R"({"patternProperties":1})",
                                   R"({"patternProperties":{"a":{},"b":{}}})",
                                   R"({"additionalProperties":1})",
                                   R"({"typo":1})",
                                   "7",
                                   "[]",
                                   "{",
                                   "",
                                   R"({"properties":{"a":3}})"}) {
    EXPECT_THAT(error_of(schema), testing::StartsWith("response_format: ")) << schema;
  }
}

TEST(JsonSchema, NothingLeadsToADeadEnd) {
  const auto taken = [](std::string_view schema, std::string_view text) {
    return taken_bytes(schema_grammar(schema), text);
  };
  EXPECT_EQ(taken(R"({"properties":{"a":false,"ab":{}}})", R"({"a":)"), 3u);
  EXPECT_EQ(taken(R"({"properties":{"a":false}})", R"({"a)"), 1u);
  EXPECT_EQ(taken(R"({"properties":{"a":{"const":1},"b":false}})", R"({"a":1,)"), 6u);
  EXPECT_EQ(
      taken(R"({"type":"array","prefixItems":[{"const":1}],"items":{"enum":[{}],"type":"null"}})", "[1,"),
      2u);
  EXPECT_EQ(taken(R"({"type":"array","items":false})", "[1"), 1u);
  EXPECT_EQ(taken(R"({"type":"string","pattern":"^(ab|ac)$","maxLength":1,"nullable":true})", "\"a"), 0u);
  EXPECT_EQ(taken(R"({"anyOf":[{"type":"object","properties":{"x":false},"required":["x"]},{"const":{}}]})",
                  "{\"x"),
            1u);
}

TEST(Vocabulary, SpecialTokensAreNoText) {
  const auto index = nano_index();
  const SpecialTokens& special = text::nano_tokenizer().special();
  for (const Token token : {special.bos, special.eos, special.user, special.assistant, special.think_open,
                            special.think_close, Token{-1}, static_cast<Token>(index->vocabulary_size())}) {
    EXPECT_EQ(index->bytes(token), "");
  }
  EXPECT_EQ(index->bytes(special.dsml), "｜DSML｜");
  // The mark is text to a string, but not in an answer.
  const auto grammar = schema_grammar(R"({"type":"string"})");
  Constraint constraint(grammar, index);
  ASSERT_TRUE(constraint.accept_bytes("\"a"));
  std::vector<uint64_t> mask(index->mask_words());
  constraint.allowed(mask);
  const auto allows = [&](Token token) {
    return ((mask[static_cast<size_t>(token) / 64] >> (token % 64)) & 1) != 0;
  };
  EXPECT_FALSE(allows(special.dsml));
  EXPECT_FALSE(constraint.accept(special.dsml));
  EXPECT_FALSE(allows(special.think_open));
  EXPECT_FALSE(allows(special.eos));
  ASSERT_TRUE(constraint.accept_bytes("\""));
  constraint.allowed(mask);
  EXPECT_TRUE(allows(special.eos));
  EXPECT_EQ(std::count(mask.begin(), mask.end(), 0), static_cast<std::ptrdiff_t>(mask.size() - 1));
}

TEST(Constraints, CopiesGoTheirOwnWays) {
  Constraint one(schema_grammar(R"({"type":"array","items":{"type":"integer"}})"), nano_index());
  ASSERT_TRUE(one.accept_bytes("[1"));
  Constraint two = one;
  EXPECT_FALSE(one.accept_bytes(",,"));
  EXPECT_TRUE(one.accept_bytes("]"));
  EXPECT_TRUE(one.complete());
  EXPECT_FALSE(two.complete());
  EXPECT_TRUE(two.accept_bytes(", 2]"));
  EXPECT_TRUE(two.complete());
}

TEST(Constraints, LongRepliesForgetTheirStacks) {
  Constraint constraint(schema_grammar(R"({"type":"array","items":{"type":"object"},"maxItems":5000})"),
                        nano_index());
  ASSERT_TRUE(constraint.accept_bytes("["));
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(constraint.accept_bytes(i == 0 ? "{}" : ", {\"a\": [[]]}")) << i;
  EXPECT_FALSE(constraint.accept_bytes(","));
  EXPECT_TRUE(constraint.accept_bytes("]"));
  EXPECT_TRUE(constraint.complete());
}

TEST(JsonSchema, HostileSchemasAreRefused) {
  EXPECT_THAT(error_of(R"({"$ref":"#"})"), HasSubstr("refers to itself"));
  EXPECT_THAT(error_of(R"({"anyOf":[{"type":"null"},{"$ref":"#"}]})"), HasSubstr("refers to itself"));
  EXPECT_THAT(error_of(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"allOf":[{"$ref":"#/$defs/a"}]}},
      "properties":{"x":{"$ref":"#/$defs/a"}}})"),
              HasSubstr("refers to itself"));
  EXPECT_THAT(error_of(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"),
              HasSubstr("no value"));
  EXPECT_THAT(error_of(std::string(5000, '[')), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(R"({"description":")" + std::string(2 << 20, 'x') + "\"}"), HasSubstr("bytes"));
  EXPECT_THAT(error_of(R"({"pattern":"((((((a{1000}){1000}){1000}){1000}){1000}){1000})"
                       R"("})"),
              HasSubstr("complex"));
  EXPECT_THAT(error_of(R"({"pattern":"(a|b)*a(a|b){20}"})"), HasSubstr("complex"));
  std::string many = R"({"anyOf":[)";
  for (int i = 0; i < 300; ++i) many += R"({"type":"object"},)";
  EXPECT_THAT(error_of(many + R"({}]})"), HasSubstr("alternatives"));
  std::string product = R"({"allOf":[)";
  for (int i = 0; i < 20; ++i) product += R"({"anyOf":[{"minLength":1},{"minLength":2}]},)";
  EXPECT_THAT(error_of(product + "{}]}"), HasSubstr("alternatives"));
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 1000; ++i) {
    chain += fmt::format(R"("d{}":{{"$ref":"#/$defs/d{}"}},)", i, i + 1);
  }
  EXPECT_THAT(error_of(chain + R"("d1000":{}}})"), HasSubstr("too deeply"));
}

/// What is written behind `text` to end it in the shortest way.
std::string shortest_end(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Constraint constraint(grammar, nano_index());
  EXPECT_TRUE(constraint.accept_bytes(text)) << text;
  const auto tokens = constraint.shortest_end(1000);
  if (!tokens) return "none";
  std::string end;
  for (const Token token : *tokens) {
    end += nano_index()->bytes(token);
    EXPECT_TRUE(constraint.accept(token)) << text << " + " << end;
  }
  EXPECT_TRUE(constraint.complete()) << text << " + " << end;
  return end;
}

TEST(ShortestEnd, ClosesWhatIsOpen) {
  const auto object = Grammar::json_object().value();
  EXPECT_EQ(shortest_end(object, ""), "{}");
  EXPECT_EQ(shortest_end(object, R"({"a":"b)"), "\"}");
  EXPECT_EQ(shortest_end(object, R"({"a":[[{"b":")"), "\"}]]}");
  EXPECT_EQ(shortest_end(object, R"({"a":tr)"), "ue}");
  EXPECT_EQ(shortest_end(object, R"({"a":"\)").size(), 3u);
  EXPECT_EQ(shortest_end(object, "{\"a\":\"\xE6\x97").size(), 3u);  // inside a character
  EXPECT_EQ(shortest_end(object, R"({"a":1})"), "");
  EXPECT_EQ(shortest_end(object, "{\n    \"a\": 1,\n  ").size(), 5u);  // a name and a value
}

TEST(ShortestEnd, ObeysWhatTheSchemaAsksFor) {
  EXPECT_EQ(
      shortest_end(schema_grammar(R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array",
      "items":{"type":"integer"},"minItems":3},"c":{"enum":["long","longer"]}},"required":["a","b","c"]})"),
                   R"({"a":"x)")
          .size(),
      std::string_view(R"(","b":[0,0,0],"c":"long"})").size());
  EXPECT_EQ(shortest_end(schema_grammar(R"({"type":"string","minLength":300})"), "\"ab").size(), 299u);
  EXPECT_EQ(shortest_end(schema_grammar(R"({"type":"array","minItems":20,"items":{"type":"object",
      "properties":{"x":{"type":"number"},"y":{"type":"string","minLength":2}},"required":["x","y"]}})"),
                         "[")
                .size(),
            20 * std::string_view(R"({"x":0,"y":"ab"},)").size());
  EXPECT_EQ(
      shortest_end(schema_grammar(R"({"type":"string","pattern":"^[a-f]{4}-[0-9]{2}$"})"), "\"a").size(), 7u);
}

TEST(ShortestEnd, KeepsToTheLimit) {
  Constraint constraint(schema_grammar(R"({"type":"string","minLength":300})"), nano_index());
  EXPECT_FALSE(constraint.shortest_end(5));
}

}  // namespace
}  // namespace ds4::grammar
