// Checks of extraction, grading and trace reading that need no model: --self-test-extractors, and unit tests.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "item.hpp"

namespace ds4::eval {

/// A reply, and what must be found in it.
struct ExtractorCase {
  const char* name;
  AnswerKind kind;
  size_t choices;  // of AnswerKind::choice
  const char* reply;
  const char* key;
  const char* picked;
  bool correct;
};
std::span<const ExtractorCase> choice_cases();
std::span<const ExtractorCase> number_cases();
std::span<const ExtractorCase> text_cases();

/// Whether a reply ends as a run demands.
struct FinalLineCase {
  const char* name;
  const char* visible;
  bool complete;
};
std::span<const FinalLineCase> final_line_cases();

struct SelfCheck {
  size_t cases = 0;
  std::vector<std::string> failures;  // one sentence each
};
SelfCheck run_self_check();

}  // namespace ds4::eval
