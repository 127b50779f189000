#include "server/constraint_cache.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "text/test_vocabulary.hpp"

namespace ds4::server {
namespace {

TEST(ConstraintCache, KeepsWhatWasUsedLast) {
  const Tokenizer tokenizer = text::nano_vocabulary().make().value();
  ConstraintCache cache(tokenizer);
  const std::string schema = R"({"enum":["a"]})";
  auto first = cache.json_schema(schema, true);
  ASSERT_TRUE(first && *first);
  EXPECT_TRUE((*first)->accept_bytes("\"a"));
  auto second = cache.json_schema(schema, true);
  ASSERT_TRUE(second && *second);
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_FALSE((*second)->accept_bytes("a"));  // at its beginning again
  EXPECT_TRUE((*second)->accept_bytes("\"a\""));

  EXPECT_TRUE(cache.json_schema(schema, false));
  EXPECT_TRUE(cache.json_object());
  const grammar::ToolSignature tool{"f", ""}, other{"g", ""};
  EXPECT_TRUE(cache.tool_calls({&tool, 1}, true));
  EXPECT_TRUE(cache.tool_calls({&tool, 1}, false));
  EXPECT_TRUE(cache.tool_calls({&other, 1}, false));
  EXPECT_EQ(cache.size(), 6u);
  EXPECT_FALSE(cache.json_schema("{", true));
  const auto refused = cache.json_schema(R"({"not":{}})", true, "text.format");
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().message.starts_with("text.format: ")) << refused.error().message;
  EXPECT_EQ(cache.size(), 6u);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(cache.json_schema(fmt::format(R"({{"enum":[{}]}})", i), true));
  EXPECT_EQ(cache.size(), 32u);
}

}  // namespace
}  // namespace ds4::server
