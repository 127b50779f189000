// `ds4-server` from its arguments to its exit status.
#pragma once

#include <span>

namespace ds4::server {

int run_program(std::span<const char* const> arguments);

}  // namespace ds4::server
