#include "server/api/json_fields.hpp"

#include <gtest/gtest.h>

namespace ds4::server::api {
namespace {

std::string refusal(std::string_view body) {
  FieldErrors errors;
  const auto value = parse_body(body, errors);
  EXPECT_NE(value.has_value(), static_cast<bool>(errors));
  return errors ? errors.first().message : "";
}

TEST(ParseBody, TakesStrictJsonObjectsOnly) {
  EXPECT_EQ(refusal(" \n{\"a\":1}"), "");
  EXPECT_EQ(refusal("{}} trailing [ text \xff"), "");
  EXPECT_EQ(refusal(""), "invalid JSON request: the body is not a JSON object");
  EXPECT_EQ(refusal("[]"), "invalid JSON request: the body is not a JSON object");
  for (const char* body : {"{", "{\"a\"}", "{\"a\":nan}", "{\"a\":0x10}", "{\"a\":1,}", "{\"a\":1 \"b\":2}",
                           "{\"a\":'b'}", "{\"a\":\"\\x\"}", "{\"a\":\"x\ny\"}", "{\"a\":01}"}) {
    EXPECT_EQ(refusal(body), "invalid JSON request: the body is not well-formed JSON") << body;
  }
  EXPECT_EQ(refusal("{\"a\":\"\xc3\x28\"}"), "invalid JSON request: the body is not valid UTF-8");
}

TEST(ParseBody, LimitsDepthAndNumberOfValues) {
  const auto nested = [](size_t levels) {
    return "{\"a\":" + std::string(levels - 1, '[') + std::string(levels - 1, ']') + "}";
  };
  EXPECT_EQ(refusal(nested(256)), "");
  EXPECT_EQ(refusal(nested(257)), "invalid JSON request: the body is nested deeper than 256 levels");
  EXPECT_EQ(refusal("{\"a\":\"" + std::string(300, '[') + "\"}"), "");  // brackets of a string do not count
  std::string many = "{\"a\":[0";
  for (size_t i = 0; i < (size_t{1} << 21); ++i) many += ",0";
  EXPECT_EQ(refusal(many + "]}"), "invalid JSON request: the body has too many values");
}

class FieldsTest : public testing::Test {
 protected:
  Fields fields(std::string text, std::string path = "") {
    text_ = std::move(text);
    errors_ = FieldErrors();
    return {JsonValue(text_), std::move(path), errors_};
  }
  std::string complaint() const {
    return errors_ ? errors_.first().param + ": " + errors_.first().message : "";
  }
  std::string text_;
  FieldErrors errors_;
};

TEST_F(FieldsTest, ReadsValues) {
  const Fields f = fields(
      R"({"b":true,"s":"a\u00e9","x":1.5e1,"i":-7,"w":12.0,"n":null,"o":{ "k" : 1 },"l":[1, "2" ,[]],"e":[ ]})");
  EXPECT_EQ(f.boolean("b"), true);
  EXPECT_EQ(f.string("s"), "a\xc3\xa9");
  EXPECT_EQ(f.number("x", 0, 20), 15);
  EXPECT_EQ(f.integer("i", -10, 10), -7);
  EXPECT_EQ(f.count("w", 0, 100), 12u);
  EXPECT_EQ(f.boolean("n"), std::nullopt);
  EXPECT_EQ(f.string("absent"), std::nullopt);
  EXPECT_FALSE(f.has("n"));
  EXPECT_EQ(f.object("o")->integer("k", 0, 1), 1);
  EXPECT_EQ(f.find("o")->text(), "{ \"k\" : 1 }");
  const auto list = f.array("l");
  ASSERT_EQ(list->size(), 3u);
  EXPECT_EQ((*list)[1].string(), "2");
  EXPECT_TRUE((*list)[2].is(JsonValue::Kind::array));
  EXPECT_TRUE(f.array("e")->empty());
  EXPECT_EQ(complaint(), "");
}

TEST_F(FieldsTest, LastOfRepeatedNamesCounts) {
  const Fields f = fields(R"({"a":1,"b":2,"a":3,"b":null})");
  EXPECT_EQ(f.integer("a", 0, 9), 3);
  EXPECT_FALSE(f.has("b"));
  EXPECT_GT(f.position("b"), f.position("a"));
}

TEST_F(FieldsTest, ErrorsNameTheField) {
  fields(R"({"a":1})").boolean("a");
  EXPECT_EQ(complaint(), "a: a must be true or false");
  fields(R"({"a":1})", "messages[2]").string("a");
  EXPECT_EQ(complaint(), "messages[2].a: messages[2].a must be a string");
  EXPECT_EQ(errors_.first().code, "invalid_type");
  fields(R"({"a":"1"})").number("a", 0, 2);
  EXPECT_EQ(complaint(), "a: a must be a number");
  fields(R"({"a":2.5})").number("a", 0, 2);
  EXPECT_EQ(complaint(), "a: a must be between 0 and 2");
  EXPECT_EQ(errors_.first().code, "invalid_value");
  fields(R"({"a":1e999})").number("a", 0, 2);
  EXPECT_EQ(complaint(), "a: a must be between 0 and 2");
  fields(R"({"a":1.5})").integer("a", 0, 2);
  EXPECT_EQ(complaint(), "a: a must be an integer between 0 and 2");
  fields(R"({"a":-1})").count("a", 0, 2);
  EXPECT_EQ(complaint(), "a: a must be an integer between 0 and 2");
  fields(R"({"a":[]})").object("a");
  EXPECT_EQ(complaint(), "a: a must be an object");
  fields(R"({"a":{}})").array("a");
  EXPECT_EQ(complaint(), "a: a must be an array");
  fields(R"({"a":{}})").refuse("a");
  EXPECT_EQ(complaint(), "a: a is not supported");
  EXPECT_EQ(errors_.first().code, "unsupported_parameter");
}

TEST_F(FieldsTest, TheFirstErrorCounts) {
  const Fields f = fields(R"({"a":1,"b":2})");
  f.string("b");
  f.string("a");
  EXPECT_EQ(complaint(), "b: b must be a string");
}

}  // namespace
}  // namespace ds4::server::api
