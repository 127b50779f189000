// The table at the end of a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ds4::eval {

struct ReportRow {
  uint64_t number = 0;
  std::string state;  // "PASSED", "FAILED", "INCOMPLETE", "SKIPPED", "STOPPED", "ERROR", "PENDING", ...
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  double seconds = 0;
  std::string given, correct;
  std::string name;  // "source/id"
};

struct Score {
  uint64_t passed = 0;
  uint64_t failed = 0;  // everything else that was tried to its end: FAILED, INCOMPLETE, ERROR
};
Score score_of(const std::vector<ReportRow>& rows);

/// "00h:03m"
std::string clock_text(double seconds);
/// A line with the score and the time that the cases took, and the table.
std::string format_report(const std::vector<ReportRow>& rows, uint64_t total);

}  // namespace ds4::eval
