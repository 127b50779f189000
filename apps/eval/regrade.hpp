// Grading the replies of an old trace by the rules of today, without a model (docs/eval.md §7).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "item.hpp"
#include "report.hpp"

namespace ds4::eval {

struct Regrade {
  uint64_t cases = 0, passed = 0, failed = 0, changed = 0;
  uint64_t not_graded = 0;           // not run to an answer in the trace
  uint64_t unknown = 0;              // no such item
  uint64_t parse_errors = 0;         // a case without source, id or reply
  std::vector<std::string> changes;  // one sentence each
  std::vector<ReportRow> rows;       // the last attempt of every case
  uint64_t total = 0;                // cases of the run that was traced
};

using FindItem = std::function<const Item*(std::string_view source, std::string_view id)>;
Regrade regrade_trace(std::string_view trace, const FindItem& find);

/// "regraded 92 cases from old.trace: passed=61 failed=31 changed=0 unknown=0 parse_errors=0"
std::string regrade_sentence(const Regrade& result, std::string_view path);

}  // namespace ds4::eval
