#include "prompt.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grade.hpp"

namespace ds4::eval {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

TEST(Prompt, MultipleChoice) {
  const Item item{
      .source = "S", .id = "a", .question = "Which?", .choices = {"x", "y"}, .kind = AnswerKind::choice};
  EXPECT_EQ(question_text(item),
            "Which?\n\nChoices:\nA. x\nB. y\n\nThink it over, solve the question and end with exactly one "
            "line in this "
            "format:\nAnswer: <letter>");
  EXPECT_THAT(system_text(item), HasSubstr("hard benchmark question"));
}

TEST(Prompt, OtherKinds) {
  Item item{.source = "S", .id = "a", .question = "Q"};
  EXPECT_EQ(question_text(item),
            "Q\n\nThink it over, solve the problem and end with exactly one line in this format:\nAnswer: "
            "<integer>");
  item.kind = AnswerKind::line_set;
  EXPECT_THAT(question_text(item), EndsWith("\nAnswer: <line number or comma-separated line numbers>"));
  item.kind = AnswerKind::reduced_rational;
  EXPECT_THAT(question_text(item), EndsWith("\nAnswer: <integer or reduced fraction>"));
  item.kind = AnswerKind::ordered_sequence;
  EXPECT_THAT(question_text(item), EndsWith("\nAnswer: <ordered answers>"));
  item.kind = AnswerKind::exact_text;
  EXPECT_THAT(question_text(item), EndsWith("\nAnswer: <exact answer>"));
}

TEST(Prompt, BareItemsAreAskedAsTheyAre) {
  Item item{.source = "S", .id = "a", .question = "Q", .style = PromptStyle::bare};
  EXPECT_EQ(question_text(item), "Q");
  EXPECT_EQ(system_text(item), "");
  item.system = "Be brief.";
  EXPECT_EQ(system_text(item), "Be brief.");
}

TEST(Prompt, ThinkingOfAnItemWins) {
  Item item;
  EXPECT_EQ(think_mode(item, ThinkMode::max), ThinkMode::max);
  item.think = false;
  EXPECT_EQ(think_mode(item, ThinkMode::max), ThinkMode::none);
  item.think = true;
  EXPECT_EQ(think_mode(item, ThinkMode::max), ThinkMode::max);
  EXPECT_EQ(think_mode(item, ThinkMode::none), ThinkMode::high);
}

TEST(Grade, RepliesWithoutFinalLineAreIncomplete) {
  Item item{.source = "S", .id = "a", .question = "Q", .answer = "7"};
  EXPECT_EQ(grade_reply(item, "so\nAnswer: 7").verdict, Verdict::passed);
  EXPECT_EQ(grade_reply(item, "so\nAnswer: 8").verdict, Verdict::failed);
  EXPECT_EQ(grade_reply(item, "it is 7").verdict, Verdict::incomplete);
  EXPECT_EQ(grade_old_reply(item, "it is 7").verdict, Verdict::passed);
  EXPECT_EQ(grade_reply(item, "Answer: 7</think>").verdict, Verdict::incomplete);
  item.style = PromptStyle::bare;
  EXPECT_EQ(grade_reply(item, "it is 7").verdict, Verdict::passed);
  EXPECT_EQ(grade_reply(item, "7</think> ").verdict, Verdict::incomplete);
}

TEST(Grade, AliasesCount) {
  Item item{.source = "S", .id = "a", .question = "Q", .kind = AnswerKind::exact_text, .answer = "Sulfur"};
  item.aliases = {"sulphur"};
  EXPECT_TRUE(is_correct(item, "SULPHUR."));
  EXPECT_FALSE(is_correct(item, "silver"));
}

TEST(Grade, LineSets) {
  EXPECT_EQ(parse_line_set("3,5-7").count(), 4u);
  EXPECT_EQ(parse_line_set("7-5").count(), 3u);
  EXPECT_TRUE(parse_line_set("300").test(255));
  EXPECT_TRUE(parse_line_set("-3").test(0));
  EXPECT_TRUE(parse_line_set("x").none());
  EXPECT_EQ(parse_line_set("0-99999999999999999999").count(), 256u);
}

}  // namespace
}  // namespace ds4::eval
