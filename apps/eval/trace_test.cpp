// Traces, regrading and baselines beyond what the self-test checks.
#include "trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "baseline.hpp"
#include "regrade.hpp"

namespace ds4::eval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

CaseState passed(const char* id, uint64_t generated) {
  CaseState c{.item = {.source = "S", .id = id, .question = "Q", .answer = "7"}};
  c.status = Status::passed;
  c.picked = "7";
  c.prompt_tokens = 10;
  c.generated_tokens = generated;
  c.seconds = 1.2345;
  c.output = "Answer: 7";
  return c;
}

std::string trace_of(const std::vector<CaseState>& cases) {
  std::string text = format_trace_header({{"model", "two\nlines"}});
  for (size_t i = 0; i < cases.size(); ++i) {
    const CaseState& c = cases[i];
    TraceCase t{.number = i + 1, .total = cases.size(), .source = c.item.source, .id = c.item.id};
    t.status = status_name(c.status);
    t.picked = c.picked;
    t.prompt_tokens = c.prompt_tokens;
    t.generated_tokens = c.generated_tokens;
    t.elapsed_seconds = c.seconds;
    t.model_output = c.output;
    text += format_trace_case(t);
  }
  return text + format_trace_summary(1, 1, cases.size());
}

TEST(Trace, HeaderValuesStayOnOneLine) {
  EXPECT_THAT(format_trace_header({{"model", "two\nlines"}}), HasSubstr("\nmodel: two lines\n"));
}

TEST(Trace, DamagedTextIsHarmless) {
  const std::string text = trace_of({passed("a", 3), passed("b", 4)});
  for (size_t cut = 0; cut <= text.size(); ++cut) EXPECT_LE(parse_trace(text.substr(0, cut)).size(), 2u);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = '\n';
    EXPECT_LE(parse_trace(changed).size(), 2u);
  }
}

TEST(Baseline, ComparesFieldByField) {
  const std::vector<CaseState> cases{passed("a", 3), passed("b", 4)};
  const std::string trace = trace_of(cases);
  EXPECT_THAT(compare_with_baseline(cases, trace), ElementsAre());
  auto other = cases;
  other[1].generated_tokens = 5;
  EXPECT_THAT(compare_with_baseline(other, trace), ElementsAre("S/b: generated tokens was 4, is 5"));
  other = cases;
  other[0].status = Status::failed;
  other[0].picked = "8";
  EXPECT_THAT(compare_with_baseline(other, trace),
              ElementsAre("S/a: status was PASSED, is FAILED", "S/a: answer was 7, is 8"));
  other = {cases[0]};
  EXPECT_THAT(compare_with_baseline(other, trace), ElementsAre("case 2, S/b, was not asked"));
  other = {cases[0], passed("c", 4)};
  EXPECT_THAT(compare_with_baseline(other, trace), ElementsAre("case 2, S/c, is not there"));
}

TEST(Regrade, GivesTheSameReport) {
  RunState state;
  state.cases = {passed("a", 3), passed("b", 4), passed("c", 5)};
  state.cases[1].status = Status::incomplete;
  state.cases[1].picked = "?";
  state.cases[2].status = Status::failed;
  state.cases[2].picked = "9";
  state.cases[2].output = "Answer: 9";
  const Regrade result =
      regrade_trace(trace_of(state.cases), [&](std::string_view, std::string_view id) -> const Item* {
        for (const CaseState& c : state.cases) {
          if (c.item.id == id) return &c.item;
        }
        return nullptr;
      });
  EXPECT_EQ(format_report(result.rows, result.total), format_report(state.rows(), state.cases.size()));
  EXPECT_EQ(regrade_sentence(result, "x"),
            "regraded 3 cases from x: passed=1 failed=1 changed=0 not_graded=1 unknown=0 parse_errors=0");
}

TEST(Report, Layout) {
  RunState state;
  state.cases = {passed("a", 3)};
  EXPECT_EQ(format_report(state.rows(), 1),
            "ds4-eval: 1/1 passed, runtime 00h:00m (1.2 s)\n"
            "  # state        prompt      gen    total  seconds given    correct  test\n"
            "  1 PASSED           10        3       13      1.2 7        7        S/a\n");
  EXPECT_EQ(clock_text(3 * 3600 + 59.9 * 60), "03h:59m");
}

}  // namespace
}  // namespace ds4::eval
