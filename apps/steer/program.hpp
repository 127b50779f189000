// What `ds4-steer` does with its command line.
#pragma once

#include <span>

namespace ds4::steer {

/// Runs the program; `arguments` without its name. Returns the exit status.
int run_program(std::span<const char* const> arguments);

}  // namespace ds4::steer
