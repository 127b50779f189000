// The text file that a run leaves: every prompt, reply and verdict (docs/eval.md §7).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/console.hpp"
#include "ds4/error.hpp"
#include "item.hpp"
#include "think_budget.hpp"

namespace ds4::eval {

/// One case of a trace.
struct TraceCase {
  uint64_t number = 0, total = 0;  // "CASE 3/92"
  uint64_t timestamp_unix = 0;
  std::string source, id, domain, title;
  std::string status;  // "PASSED", "FAILED", "INCOMPLETE", "SKIPPED", "STOPPED", "SWITCHED", "ERROR"
  std::string picked, expected;
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  double elapsed_seconds = 0;
  float temperature = 0, top_p = 1, min_p = 0;
  std::string think_mode;
  ThinkClose close;
  std::string error;
  std::vector<std::string> choices;
  std::string answer_kind;
  std::string system_prompt, question_prompt;
  std::optional<std::string> model_output;  // a trace may lack it
};

/// `name: value` lines in the order of the file.
using TraceHeader = std::vector<std::pair<std::string, std::string>>;

std::string format_trace_header(const TraceHeader& header);
std::string format_trace_case(const TraceCase& record);
std::string format_trace_summary(uint64_t passed, uint64_t failed, uint64_t total);

/// Writes a trace piece by piece; what was written is in the file at once.
class TraceFile {
 public:
  /// Creates or empties the file.
  static Result<TraceFile> create(const std::string& path);
  Result<void> write(std::string_view text);

 private:
  // The descriptor is left to the end of the program.
  TraceFile(int descriptor, std::string path) : writer_(descriptor), path_(std::move(path)) {}
  cli::Writer writer_;
  std::string path_;
};

/// The cases of a trace. Blocks are taken by their byte counts, so nothing that a prompt or reply says is
/// mistaken for the structure of the file. Fields that cannot be read keep their defaults.
std::vector<TraceCase> parse_trace(std::string_view text);

}  // namespace ds4::eval
