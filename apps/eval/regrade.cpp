#include "regrade.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "grade.hpp"
#include "text_tools.hpp"
#include "trace.hpp"

namespace ds4::eval {
namespace {

ReportRow row_of(const TraceCase& c, const Item& item) {
  return {c.number,          c.status.empty() ? "PENDING" : c.status,
          c.prompt_tokens,   c.generated_tokens,
          c.elapsed_seconds, c.picked,
          item.answer,       item.name()};
}

/// The last attempt stands.
void add_row(Regrade& result, ReportRow row) {
  const auto same = std::find_if(result.rows.begin(), result.rows.end(),
                                 [&](const ReportRow& other) { return other.number == row.number; });
  if (same != result.rows.end() && row.number != 0) {
    *same = std::move(row);
  } else {
    result.rows.push_back(std::move(row));
  }
}

void regrade_case(const TraceCase& c, const FindItem& find, Regrade& result) {
  if (c.source.empty() || c.id.empty()) {
    ++result.parse_errors;
    return;
  }
  const Item* item = find(c.source, c.id);
  if (item == nullptr) {
    ++result.unknown;
    return;
  }
  ReportRow row = row_of(c, *item);
  const bool graded = c.status.empty() || c.status == "PASSED" || c.status == "FAILED";
  if (!graded) {
    ++result.not_graded;
    add_row(result, std::move(row));
    return;
  }
  if (!c.model_output) {
    ++result.parse_errors;
    return;
  }
  const Grade grade = grade_old_reply(*item, *c.model_output);
  const bool passed = grade.verdict == Verdict::passed;
  ++(passed ? result.passed : result.failed);
  row.state = passed ? "PASSED" : "FAILED";
  row.given = grade.picked;
  if (row.state != c.status || collapse(grade.picked) != c.picked) {
    ++result.changed;
    result.changes.push_back(fmt::format("{}: {} -> {}, picked {} -> {}, key {}", item->name(),
                                         c.status.empty() ? "-" : c.status, row.state,
                                         c.picked.empty() ? "-" : c.picked, grade.picked, item->answer));
  }
  add_row(result, std::move(row));
}

}  // namespace

Regrade regrade_trace(std::string_view trace, const FindItem& find) {
  Regrade result;
  for (const TraceCase& c : parse_trace(trace)) {
    ++result.cases;
    result.total = std::max(result.total, c.total);
    regrade_case(c, find, result);
  }
  std::stable_sort(result.rows.begin(), result.rows.end(),
                   [](const ReportRow& a, const ReportRow& b) { return a.number < b.number; });
  return result;
}

std::string regrade_sentence(const Regrade& r, std::string_view path) {
  std::string text = fmt::format("regraded {} cases from {}: passed={} failed={} changed={}", r.cases, path,
                                 r.passed, r.failed, r.changed);
  if (r.not_graded > 0) text += fmt::format(" not_graded={}", r.not_graded);
  return text + fmt::format(" unknown={} parse_errors={}", r.unknown, r.parse_errors);
}

}  // namespace ds4::eval
