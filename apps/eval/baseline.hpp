// Comparing a run with the trace of an earlier one (docs/eval.md §7).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "run_state.hpp"

namespace ds4::eval {

/// What differs in verdict, answer, prompt tokens or generated tokens, one sentence for each case; cases that
/// only one side has differ too. The last attempt of a case counts.
std::vector<std::string> compare_with_baseline(const std::vector<CaseState>& cases, std::string_view trace);

}  // namespace ds4::eval
