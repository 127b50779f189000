// Entry point of `ds4-server`.
#include <span>

#include "program.hpp"

int main(int argc, char** argv) {
  const std::span<const char* const> arguments(argv, static_cast<size_t>(argc));
  return ds4::server::run_program(arguments.empty() ? arguments : arguments.subspan(1));
}
