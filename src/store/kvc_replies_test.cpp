#include "store/kvc_replies.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/special_tokens.hpp"
#include "text/test_vocabulary.hpp"

namespace ds4::store {
namespace {

using testing::ElementsAre;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = text::nano_vocabulary().make().value();
  return instance;
}

std::string block_of(const std::string& value) {
  return "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" string=\"true\">" +
         value + "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
}

std::string text_of(const std::vector<PromptSpan>& spans) {
  std::string text;
  for (const PromptSpan& span : spans) text += span.text;
  return text;
}

/// A conversation of two replies with calls and one without.
std::vector<Token> conversation() {
  RenderedPrompt rendered;
  rendered.spans = {{"<｜begin▁of▁sentence｜><｜User｜>", true},
                    {"a question", false},
                    {"<｜Assistant｜><think>", true},
                    {"because", false},
                    {"</think>", true},
                    {"Wait.", false},
                    {"\n\n" + block_of("one") + "<｜end▁of▁sentence｜><｜User｜>", true},
                    {"<tool_result>1</tool_result>", false},
                    {"<｜Assistant｜></think>", true},
                    {"Again.", false},
                    {"\n\n" + block_of("two") + "<｜end▁of▁sentence｜><｜User｜>", true},
                    {"<tool_result>2</tool_result>", false},
                    {"<｜Assistant｜></think>", true},
                    {"Done.", false}};
  return rendered.encode(tokenizer());
}

TEST(KvcReplies, AreFoundByTheirBlocks) {
  const auto replies = replies_of_tools(
      conversation(), tokenizer(),
      std::vector<KvcTool>{
          {"call_2", "\n\n" + block_of("two")}, {"call_1", block_of("one")}, {"call_2b", block_of("two")}});
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_THAT(replies[0].ids, ElementsAre("call_2", "call_2b"));
  EXPECT_EQ(text_of(replies[0].reply->reasoning), "");
  EXPECT_EQ(text_of(replies[0].reply->content), "Again.");
  EXPECT_EQ(text_of(replies[0].reply->tool_block), "\n\n" + block_of("two"));
  EXPECT_THAT(replies[1].ids, ElementsAre("call_1"));
  EXPECT_EQ(text_of(replies[1].reply->reasoning), "because");
  EXPECT_EQ(text_of(replies[1].reply->content), "Wait.");
  EXPECT_EQ(text_of(replies[1].reply->tool_block), "\n\n" + block_of("one"));
  for (const PromptSpan& span : replies[1].reply->tool_block)
    EXPECT_EQ(span.trusted, span.text == text::kDsml) << span.text;
}

TEST(KvcReplies, BlocksThatTheStateDoesNotHaveAreLeftOut) {
  EXPECT_TRUE(replies_of_tools(conversation(), tokenizer(), {}).empty());
  EXPECT_TRUE(replies_of_tools(conversation(), tokenizer(),
                               std::vector<KvcTool>{{"call_3", block_of("three")}, {"call_4", " \n"}})
                  .empty());
  EXPECT_TRUE(replies_of_tools({}, tokenizer(), std::vector<KvcTool>{{"call_1", block_of("one")}}).empty());
}

}  // namespace
}  // namespace ds4::store
