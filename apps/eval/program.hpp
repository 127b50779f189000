// `ds4-eval` as a function.
#pragma once

#include <span>

namespace ds4::eval {

/// Returns the exit code.
int run_program(std::span<const char* const> arguments);

}  // namespace ds4::eval
