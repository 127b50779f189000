#include "tool_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ToolFile, KeepsTheTextOfEachSchema) {
  const auto tools = parse_tools(R"( [ {"name": "a",  "x": [1, {"y": "]}\""}]} ,
{"type":"function","function": {"name" : "b",
 "parameters": {}}, "strict": true},{"\u0066unction":{"name":"c"}}] )",
                                 "t.json");
  ASSERT_TRUE(tools) << tools.error().message;
  EXPECT_THAT(*tools, ElementsAre(R"({"name": "a",  "x": [1, {"y": "]}\""}]})",
                                  "{\"name\" : \"b\",\n \"parameters\": {}}", R"({"name":"c"})"));
}

TEST(ToolFile, EmptyArray) {
  EXPECT_TRUE(parse_tools("[]", "t.json")->empty());
}

TEST(ToolFile, SaysWhatIsWrong) {
  EXPECT_THAT(parse_tools("[", "t.json").error().message, HasSubstr("t.json: not JSON"));
  EXPECT_THAT(parse_tools("", "t.json").error().message, HasSubstr("not JSON"));
  EXPECT_THAT(parse_tools("{}", "t.json").error().message, HasSubstr("not a JSON array"));
  EXPECT_THAT(parse_tools("[1]", "t.json").error().message, HasSubstr("element 1 is not an object"));
  EXPECT_THAT(parse_tools(R"([{"name":"a"},{}])", "t.json").error().message,
              HasSubstr("element 2 has no name"));
}

}  // namespace
}  // namespace ds4::cli
