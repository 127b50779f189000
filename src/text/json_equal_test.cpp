#include "text/json_equal.hpp"

#include <gtest/gtest.h>

#include <string>

namespace ds4::text {
namespace {

TEST(JsonEqual, WhatProgramsDoToJson) {
  EXPECT_TRUE(
      json_equal(R"({"a":1,"b":[true,null,"x"]})", " {\n \"b\" : [ true , null, \"x\" ], \"a\": 1 }\n"));
  EXPECT_TRUE(json_equal(R"(["é\n/", 1.50e3])", R"(["\u00e9\u000a\/",1500])"));
  EXPECT_TRUE(json_equal("12345678901234567890", "12345678901234567000"));
  EXPECT_TRUE(json_equal("[]", "[ ]"));
  EXPECT_TRUE(json_equal("{}", "{ }"));
  EXPECT_TRUE(json_equal("-0", "0"));
}

TEST(JsonEqual, WhatChangesTheMeaning) {
  for (const auto& [a, b] :
       {std::pair(R"({"a":1})", R"({"a":2})"), std::pair(R"({"a":1})", R"({"b":1})"),
        std::pair(R"({"a":1})", R"({"a":1,"b":1})"), std::pair("[1,2]", "[2,1]"), std::pair("[1]", "[1,1]"),
        std::pair(R"("a")", R"("A")"), std::pair("true", "false"), std::pair("1", R"("1")"),
        std::pair("{}", "[]"), std::pair("null", "{}"),
        std::pair(R"({"a":{"b":[1,{"c":2}]}})", R"({"a":{"b":[1,{"c":3}]}})")}) {
    EXPECT_FALSE(json_equal(a, b)) << a << " " << b;
    EXPECT_FALSE(json_equal(b, a)) << a << " " << b;
  }
}

TEST(JsonEqual, NoValues) {
  EXPECT_FALSE(json_equal("", ""));
  EXPECT_FALSE(json_equal("{", "{"));
  EXPECT_FALSE(json_equal("{} {}", "{} {}"));
}

TEST(JsonEqual, DeepNesting) {
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  EXPECT_TRUE(json_equal(deep, " " + deep));
  EXPECT_FALSE(json_equal(deep, std::string(5001, '[') + std::string(5001, ']')));
}

}  // namespace
}  // namespace ds4::text
