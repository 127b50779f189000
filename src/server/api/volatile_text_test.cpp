#include "server/api/volatile_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::server::api {
namespace {

TEST(VolatileText, LinesAtTheBeginning) {
  std::vector<std::string> dropped;
  VolatileTextOptions options;
  options.on_drop = [&](std::string_view text) { dropped.emplace_back(text); };
  EXPECT_EQ(without_volatile_lines("x-anthropic-billing-header: cch=1;", options), "");
  EXPECT_EQ(without_volatile_lines("x-anthropic-a: 1\nx-anthropic-b: 2\nYou are", options), "You are");
  EXPECT_EQ(without_volatile_lines("You are\nx-anthropic-a: 1", options), "You are\nx-anthropic-a: 1");
  EXPECT_THAT(dropped, testing::ElementsAre("x-anthropic-billing-header: cch=1;", "x-anthropic-a: 1",
                                            "x-anthropic-b: 2"));
  options.drop = false;
  EXPECT_EQ(without_volatile_lines("x-anthropic-a: 1", options), "x-anthropic-a: 1");
}

TEST(VolatileText, MembersOfTools) {
  const auto kept = [](std::string_view tool) { return without_volatile_members(JsonValue(tool), {}); };
  EXPECT_EQ(kept(R"({})"), R"({})");
  EXPECT_EQ(kept(R"({ "name" : "f" , "x":{"cache_control":1}})"),
            R"({ "name" : "f" , "x":{"cache_control":1}})");
  EXPECT_EQ(kept(R"({"name":"f","cache_control":{"type":"ephemeral"}})"), R"({"name":"f"})");
  EXPECT_EQ(kept(R"({"name":"f", "cache_control" : {} , "b":1 })"), R"({"name":"f" , "b":1 })");
  EXPECT_EQ(kept(R"({"cache_control":1, "name":"f","b":2})"), R"({ "name":"f","b":2})");
  EXPECT_EQ(kept(R"({"cache_control":1 ,"cache_control":2})"), R"({})");
  EXPECT_EQ(kept(R"({"cache\u005fcontrol":1})"), R"({})");
  VolatileTextOptions off;
  off.drop = false;
  EXPECT_EQ(without_volatile_members(JsonValue(R"({"cache_control":1})"), off), R"({"cache_control":1})");
}

}  // namespace
}  // namespace ds4::server::api
