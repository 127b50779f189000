// The options of `ds4`.
#pragma once

#include <span>

#include "common/option_table.hpp"
#include "options.hpp"

namespace ds4::cli {

enum class Section { prompt, runtime, sampling, diagnostics };

using Row = OptionRow<Options, Section>;

std::span<const Row> option_table();

}  // namespace ds4::cli
