#include "suite.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace ds4::eval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Item> builtin(const char* name) {
  auto items = builtin_suite(name);
  EXPECT_TRUE(items) << items.error().message;
  return items ? *std::move(items) : std::vector<Item>();
}

std::string error_of(std::string_view text, const std::string& path = "x.jsonl") {
  const auto items = parse_suite(text, path);
  return items ? "" : items.error().message;
}

TEST(CoreSuite, HasItsProportions) {
  const auto items = builtin("core");
  ASSERT_EQ(items.size(), 92u);
  EXPECT_THAT(check_items(items), testing::IsEmpty());
  std::map<std::string, int> sources, domains;
  int ten_choices = 0;
  for (const Item& item : items) {
    ++sources[item.source];
    if (item.source != "COMPSEC") ++domains[item.domain];
    if (item.choices.size() == 10) ++ten_choices;
    EXPECT_TRUE(item.source != "Science" || item.choices.size() == 4u) << item.name();
    EXPECT_FALSE(item.solution.empty()) << item.name();
    EXPECT_FALSE(item.check.empty()) << item.name();
  }
  EXPECT_EQ(sources, (std::map<std::string, int>{
                         {"Science", 25}, {"Specialist", 25}, {"Contest", 25}, {"COMPSEC", 17}}));
  EXPECT_EQ(ten_choices, 24);
  EXPECT_EQ(domains["engineering"], 8);
  EXPECT_EQ(domains["combinatorics"], 7);
}

TEST(CoreSuite, EveryPrefixIsBalanced) {
  const auto items = builtin("core");
  ASSERT_GE(items.size(), 75u);
  std::map<std::string, int> count;
  for (size_t i = 0; i < 75; ++i) {
    ++count[items[i].source];
    for (const char* source : {"Science", "Specialist", "Contest"}) {
      EXPECT_NEAR(count[source], static_cast<double>(i + 1) / 3, 1.0) << i;
    }
  }
  for (size_t i = 75; i < items.size(); ++i) EXPECT_EQ(items[i].kind, AnswerKind::line_set);
}

TEST(CoreSuite, KeysAreSpreadOverTheLetters) {
  std::map<std::string, int> letters;
  for (const Item& item : builtin("core")) {
    if (item.source == "Science") ++letters[item.answer];
  }
  for (const auto& [letter, count] : letters) EXPECT_LE(count, 8) << letter;
  EXPECT_EQ(letters.size(), 4u);
}

TEST(CoreSuite, IntegersAreThoseOfACompetition) {
  for (const Item& item : builtin("core")) {
    if (item.kind != AnswerKind::integer) continue;
    EXPECT_LE(std::stoi(item.answer), 999) << item.name();
  }
}

TEST(NanoSuite, HasSixtyShortTasks) {
  const auto items = builtin("nano");
  EXPECT_EQ(items.size(), 60u);
  EXPECT_THAT(check_items(items), testing::IsEmpty());
  for (const Item& item : items) {
    EXPECT_TRUE(item.choices.empty()) << item.name();
    EXPECT_TRUE(item.think.has_value()) << item.name();
    EXPECT_GT(item.max_tokens, 0u) << item.name();
  }
  EXPECT_EQ(builtin("all").size(), 152u);
  EXPECT_THAT(builtin_suite("hard").error().message, HasSubstr("there is no suite 'hard'"));
}

TEST(SuiteFile, ReadsOurOwnLines) {
  const auto items = parse_suite(
      "{\"source\":\"S\",\"id\":\"a\",\"question\":\"Q\",\"choices\":[\"x\",\"y\"],\"answer\":\"B\"}\n\n"
      "{\"source\":\"COMPSEC\",\"id\":\"b\",\"question\":\"Q\",\"answer\":\"3-4\"}\n"
      "{\"source\":\"S\",\"id\":\"c\",\"question\":\"Q\",\"answer\":\"3/"
      "4\",\"answer_kind\":\"reduced_rational\","
      "\"max_tokens\":100,\"think\":false,\"system\":\"\",\"prompt\":\"bare\",\"aliases\":[\"6/8\"]}",
      "x.jsonl");
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 3u);
  EXPECT_EQ((*items)[0].kind, AnswerKind::choice);
  EXPECT_EQ((*items)[1].kind, AnswerKind::line_set);
  EXPECT_EQ((*items)[2].kind, AnswerKind::reduced_rational);
  EXPECT_EQ((*items)[2].style, PromptStyle::bare);
  EXPECT_EQ((*items)[2].system, "");
  EXPECT_EQ((*items)[2].think, false);
  EXPECT_EQ((*items)[2].max_tokens, 100u);
}

TEST(SuiteFile, SaysWhatIsWrong) {
  EXPECT_THAT(error_of(""), HasSubstr("is empty"));
  EXPECT_THAT(error_of("{\"source\":"), HasSubstr("line 1: not a JSON object"));
  EXPECT_THAT(error_of("{\"source\":\"S\",\"anwser\":\"3\"}"), HasSubstr("no field \"anwser\""));
  EXPECT_THAT(error_of("{\"source\":\"S\",\"answer\":[1]}"), HasSubstr("\"answer\" is not a text"));
  EXPECT_THAT(error_of("{\"source\":\"S\",\"choices\":1}"), HasSubstr("\"choices\" is not an array"));
  EXPECT_THAT(error_of("{\"source\":\"S\",\"answer_kind\":\"x\"}"), HasSubstr("no answer kind 'x'"));
  EXPECT_THAT(error_of("{\"source\":\"S\",\"max_tokens\":-1}"), HasSubstr("max_tokens"));
  EXPECT_THAT(error_of("{\"source\":\"S\",\"think\":1}"), HasSubstr("true or false"));
  EXPECT_THAT(error_of("{\"source\":\"S\",\"answer\":\"x\",\"answer_kind\":\"tool_calls\"}"),
              HasSubstr("calls"));
  EXPECT_THAT(error_of("a,b\n1,2\n", "x.csv"), HasSubstr("needs the columns"));
  EXPECT_THAT(error_of("a,\"b\n1,2\n", "x.csv"), HasSubstr("not closed"));
}

TEST(SuiteFile, ReadsGpqa) {
  const char* csv =
      "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer "
      "3,Subdomain\r\n"
      "rec 1,\"Which one,\nsay?\",right,\"wrong \"\"1\"\"\",wrong 2,wrong 3,Genetics\r\n"
      "rec2,Another?,r,a,b,c,Optics\r\n";
  const auto items = parse_suite(csv, "gpqa.csv");
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 2u);
  const Item& item = (*items)[0];
  EXPECT_EQ(item.name(), "GPQA/rec-1");
  EXPECT_EQ(item.question, "Which one,\nsay?");
  EXPECT_EQ(item.domain, "Genetics");
  EXPECT_THAT(item.choices, testing::UnorderedElementsAre("right", "wrong \"1\"", "wrong 2", "wrong 3"));
  EXPECT_EQ(item.choices[static_cast<size_t>(item.answer[0] - 'A')], "right");
  EXPECT_EQ(*parse_suite(csv, "gpqa.csv"), *items);
  EXPECT_THAT(check_items(*items), testing::IsEmpty());
}

TEST(SuiteFile, ReadsSuperGpqa) {
  const auto items = parse_suite(
      "{\"uuid\":\"u1\",\"question\":\"Q\",\"options\":[\"a\",\"b\",\"c\"],\"answer\":\"b\",\"answer_"
      "letter\":\"B\","
      "\"discipline\":\"Law\",\"field\":\"Civil law\",\"difficulty\":\"hard\"}",
      "supergpqa.jsonl");
  ASSERT_TRUE(items) << items.error().message;
  EXPECT_EQ((*items)[0].name(), "SuperGPQA/u1");
  EXPECT_EQ((*items)[0].domain, "Civil law");
  EXPECT_EQ((*items)[0].answer, "B");
  EXPECT_THAT((*items)[0].choices, ElementsAre("a", "b", "c"));
}

TEST(SuiteFile, ReadsAime) {
  const auto lines =
      parse_suite("{\"problem\":\"P\",\"answer\":\"070\"}\n{\"question\":\"P2\",\"answer\":5,\"id\":17}",
                  "d/aime2025.jsonl");
  ASSERT_TRUE(lines) << lines.error().message;
  EXPECT_EQ((*lines)[0].name(), "aime2025/01");
  EXPECT_EQ((*lines)[1].name(), "aime2025/17");
  EXPECT_EQ((*lines)[1].answer, "5");
  const auto table = parse_suite("ID,Problem,Solution,Answer\n2024-I-1,P,S,204\n", "AIME_2024.csv");
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ((*table)[0].name(), "AIME_2024/2024-I-1");
  EXPECT_EQ((*table)[0].answer, "204");
}

TEST(Csv, KeepsRowsAndQuotes) {
  const auto rows = parse_csv("a,\"b,\"\"c\"\"\n\",d\n\n,\n");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_THAT((*rows)[0], ElementsAre("a", "b,\"c\"\n", "d"));
  EXPECT_THAT((*rows)[1], ElementsAre("", ""));
}

TEST(Validate, FindsMistakes) {
  const Item good{.source = "S", .id = "a", .question = "Q", .answer = "3"};
  const auto complaint = [](const Item& item) {
    const auto valid = validate(item);
    return valid ? std::string() : valid.error().message;
  };
  EXPECT_EQ(complaint(good), "");
  Item item = good;
  item.answer = "3.5";
  EXPECT_THAT(complaint(item), HasSubstr("not a whole number"));
  item = good;
  item.id = "a b";
  EXPECT_THAT(complaint(item), HasSubstr("space in its id"));
  item = good;
  item.title = "two\nlines";
  EXPECT_THAT(complaint(item), HasSubstr("line break"));
  item = good;
  item.kind = AnswerKind::choice;
  EXPECT_THAT(complaint(item), HasSubstr("choices"));
  item.choices = {"x", " x "};
  item.answer = "A";
  EXPECT_THAT(complaint(item), HasSubstr("same choice twice"));
  item.choices = {"x", "y"};
  item.answer = "C";
  EXPECT_THAT(complaint(item), HasSubstr("key 'C'"));
  item = good;
  item.kind = AnswerKind::line_set;
  item.answer = "five";
  EXPECT_THAT(complaint(item), HasSubstr("not line numbers"));
  item.kind = AnswerKind::tool_calls;
  EXPECT_THAT(complaint(item), HasSubstr("offers no tools"));
  EXPECT_THAT(check_items({good, good}), ElementsAre(HasSubstr("there twice")));
}

}  // namespace
}  // namespace ds4::eval
