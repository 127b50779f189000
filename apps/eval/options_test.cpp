#include "options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::eval {
namespace {

using testing::HasSubstr;

Result<Options> parse(std::vector<const char*> arguments) {
  return parse_options(arguments);
}
std::string error_of(std::vector<const char*> arguments) {
  const auto options = parse_options(arguments);
  return options ? "" : options.error().message;
}

TEST(EvalOptions, Defaults) {
  const auto o = parse({});
  ASSERT_TRUE(o);
  EXPECT_EQ(o->suite, "core");
  EXPECT_EQ(o->max_tokens, 16000u);
  EXPECT_EQ(o->budget.soft_tokens, 1024u);
  EXPECT_EQ(o->budget.hard_tokens, 512u);
  EXPECT_EQ(o->budget.close_rank, 3u);
  EXPECT_EQ(o->sampling.temperature, 0.0f);
  EXPECT_EQ(o->sampling.min_p, 0.05f);
  EXPECT_EQ(o->pause_ms, 350u);
  EXPECT_EQ(o->think, ThinkMode::high);
  EXPECT_FALSE(o->plain);
  EXPECT_FALSE(o->max_tokens_given);
}

TEST(EvalOptions, Values) {
  const auto o = parse(
      {"--case-sequence", "3,1,3", "-n", "2048", "--seed", "1", "--nothink", "--trace", "t", "-c", "9"});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_EQ(o->case_sequence, (std::vector<uint64_t>{3, 1, 3}));
  EXPECT_TRUE(o->max_tokens_given);
  EXPECT_EQ(o->context_tokens, 9u);
}

TEST(EvalOptions, Mistakes) {
  EXPECT_THAT(error_of({"--case-sequence", ""}), HasSubstr("--case-sequence"));
  EXPECT_THAT(error_of({"--case-sequence", "1,"}), HasSubstr("--case-sequence"));
  EXPECT_THAT(error_of({"--case-sequence", "0"}), HasSubstr("--case-sequence"));
  EXPECT_THAT(error_of({"--questions", "2", "--case-sequence", "1"}), HasSubstr("not both"));
  EXPECT_THAT(error_of({"--tokens", "512"}), HasSubstr("leaves no room"));
  EXPECT_THAT(error_of({"--soft-limit-reply-budget", "511"}), HasSubstr("is smaller than"));
  EXPECT_THAT(error_of({"--tokens", "1000001"}), HasSubstr("1000000"));
  EXPECT_THAT(error_of({"--list-cases", "--self-test-extractors"}), HasSubstr("give one of"));
  EXPECT_EQ(error_of({"--tokens", "512", "--nothink"}), "");
  EXPECT_EQ(error_of({"--tokens", "512", "--self-test-extractors"}), "");
  EXPECT_EQ(error_of({"--tokens", "512", "--regrade-trace", "x"}), "");
}

TEST(EvalOptions, RefusesWhatIsNotThere) {
  for (const char* name : {"--role", "--coordinator"}) {
    const auto o = parse({name, "x"});
    ASSERT_FALSE(o) << name;
    EXPECT_EQ(o.error().code, ErrorCode::unsupported) << name;
  }
  EXPECT_EQ(parse({"--power", "50"}).error().code, ErrorCode::invalid_argument);
}

TEST(EvalOptions, HelpShowsEveryOption) {
  const std::string page = help_page("", false);
  for (const Row& row : option_table()) {
    if (row.section == Section::refused) continue;
    EXPECT_THAT(page, HasSubstr(row.name));
  }
  EXPECT_THAT(page, testing::Not(HasSubstr("--role")));
  EXPECT_THAT(help_page("nonsense", false), HasSubstr("no help topic 'nonsense'"));
}

std::vector<Item> some_items() {
  return {{.source = "A", .id = "1", .domain = "x"},
          {.source = "B", .id = "1", .domain = "y"},
          {.source = "b", .id = "2", .domain = "Y"}};
}
std::vector<std::string> selected(std::vector<const char*> arguments) {
  const auto o = parse_options(arguments);
  EXPECT_TRUE(o);
  const auto items = select_cases(*o, some_items());
  if (!items) return {items.error().message};
  std::vector<std::string> names;
  for (const Item& item : *items) names.push_back(item.name());
  return names;
}

TEST(SelectCases, FiltersAndOrders) {
  using testing::ElementsAre;
  EXPECT_THAT(selected({}), ElementsAre("A/1", "B/1", "b/2"));
  EXPECT_THAT(selected({"--source", "b"}), ElementsAre("B/1", "b/2"));
  EXPECT_THAT(selected({"--domain", "Y", "--case-id", "1"}), ElementsAre("B/1"));
  EXPECT_THAT(selected({"--questions", "2"}), ElementsAre("A/1", "B/1"));
  EXPECT_THAT(selected({"--case-sequence", "3,1,3"}), ElementsAre("b/2", "A/1", "b/2"));
  EXPECT_THAT(selected({"--source", "b", "--case-sequence", "2"}), ElementsAre("b/2"));
  EXPECT_THAT(selected({"--questions", "4"}), ElementsAre(HasSubstr("there are 3")));
  EXPECT_THAT(selected({"--case-sequence", "4"}), ElementsAre(HasSubstr("there are 3")));
  EXPECT_THAT(selected({"--source", "c"}), ElementsAre(HasSubstr("no question")));
}

}  // namespace
}  // namespace ds4::eval
