#include "report.hpp"

#include <fmt/format.h>

#include <cmath>

#include "common/visible_text.hpp"
#include "text_tools.hpp"

namespace ds4::eval {
namespace {

constexpr size_t answer_bytes = 24;  // of an answer in the table

std::string cell(const std::string& text) {
  if (text.empty()) return "-";
  if (text.size() <= answer_bytes) return cli::visible(text);
  return cli::visible(std::string(clip_bytes(text, answer_bytes - 3)) + "...");
}

}  // namespace

Score score_of(const std::vector<ReportRow>& rows) {
  Score score;
  for (const ReportRow& row : rows) {
    if (row.state == "PASSED") ++score.passed;
    if (row.state == "FAILED" || row.state == "INCOMPLETE" || row.state == "ERROR") ++score.failed;
  }
  return score;
}

std::string clock_text(double seconds) {
  const auto minutes = static_cast<uint64_t>(seconds / 60);
  return fmt::format("{:02}h:{:02}m", minutes / 60, minutes % 60);
}

std::string format_report(const std::vector<ReportRow>& rows, uint64_t total) {
  const Score score = score_of(rows);
  // Whole milliseconds add up to the same in every order.
  uint64_t milliseconds = 0;
  for (const ReportRow& row : rows) milliseconds += static_cast<uint64_t>(std::llround(row.seconds * 1000));
  std::string out = fmt::format("ds4-eval: {}/{} passed", score.passed, total);
  if (score.failed > 0) out += fmt::format(", {} failed", score.failed);
  const double seconds = static_cast<double>(milliseconds) / 1000;
  out += fmt::format(", runtime {} ({:.1f} s)\n", clock_text(seconds), seconds);
  out += fmt::format("{:>3} {:<10} {:>8} {:>8} {:>8} {:>8} {:<8} {:<8} {}\n", "#", "state", "prompt", "gen",
                     "total", "seconds", "given", "correct", "test");
  for (const ReportRow& row : rows) {
    out += fmt::format("{:>3} {:<10} {:>8} {:>8} {:>8} {:>8.1f} {:<8} {:<8} {}\n", row.number, row.state,
                       row.prompt_tokens, row.generated_tokens, row.prompt_tokens + row.generated_tokens,
                       row.seconds, cell(row.given == "?" ? "" : row.given), cell(row.correct),
                       cli::visible(row.name));
  }
  return out;
}

}  // namespace ds4::eval
