// The texts of the split screen, apart from any terminal (docs/eval.md §6).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "run_state.hpp"

namespace ds4::eval {

/// Columns of the left pane on a screen of that width.
int left_pane_columns(int screen_columns);

/// The columns that a text takes, without control characters.
size_t columns_of(std::string_view text);
/// At most that many columns; a cut text ends in "...". Control characters become visible.
std::string fit(std::string_view text, size_t columns);
/// The same, filled up with blanks.
std::string pad(std::string_view text, size_t columns);
/// `text` in `lines` lines of at most `columns`, white space collapsed; "..." at the end if something is left
/// out.
std::vector<std::string> preview(std::string_view text, size_t columns, size_t lines);

/// "950", "12k", "3m"
std::string short_count(uint64_t count);
/// "PEND", "FILL", "RUN ", ...
std::string_view short_status(Status status);

/// A line of generated text.
struct OutputLine {
  std::string text;
  bool reasoning = false;
};
/// The last `lines` lines of a reply, hard-wrapped; tags removed, tabs as blanks, control characters visible.
/// `thinking`: the reply begins with reasoning.
std::vector<OutputLine> output_tail(std::string_view output, bool thinking, size_t columns, size_t lines);

/// "Speed 12.34 t/s  THINK 120/15k  Science/sci-01"
std::string progress_line(const RunState& state);
/// ">12 PASS Science: Redox titration ...   C/C"
std::string case_line(const CaseState& c, size_t number, bool selected, size_t columns);
/// The first of `visible` list entries, so that `selected` is in the middle where possible.
size_t list_begin(size_t selected, size_t count, size_t visible);

}  // namespace ds4::eval
