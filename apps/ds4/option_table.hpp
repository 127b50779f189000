// The table behind both the parser and the help pages, so that the two cannot disagree.
#pragma once

#include <span>
#include <string>

#include "ds4/error.hpp"
#include "options.hpp"

namespace ds4::cli {

enum class Section { prompt, runtime, sampling, diagnostics };

struct OptionRow {
  Section section;
  const char* short_name;  // "" if there is none
  const char* name;
  const char* value;  // what stands for the value in the help; nullptr for a flag
  const char* help;   // lines separated by '\n'
  Result<void> (*apply)(Options& options, const std::string& value);
};

std::span<const OptionRow> option_table();

}  // namespace ds4::cli
