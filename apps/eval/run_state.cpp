#include "run_state.hpp"

namespace ds4::eval {

std::string_view status_name(Status status) {
  switch (status) {
    case Status::pending:
      return "PENDING";
    case Status::prefill:
      return "PREFILL";
    case Status::running:
      return "RUNNING";
    case Status::skipped:
      return "SKIPPED";
    case Status::stopped:
      return "STOPPED";
    case Status::passed:
      return "PASSED";
    case Status::failed:
      return "FAILED";
    case Status::incomplete:
      return "INCOMPLETE";
    case Status::error:
      return "ERROR";
  }
  return "";
}

std::vector<ReportRow> RunState::rows() const {
  std::vector<ReportRow> rows;
  rows.reserve(cases.size());
  for (const CaseState& c : cases) {
    rows.push_back({rows.size() + 1, std::string(status_name(c.status)), c.prompt_tokens, c.generated_tokens,
                    c.seconds, c.picked, c.item.answer, c.item.name()});
  }
  return rows;
}

}  // namespace ds4::eval
