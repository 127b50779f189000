// Entry point of `ds4-eval`.
#include <span>

#include "program.hpp"

int main(int argc, char** argv) {
  const std::span<const char* const> arguments(argv, static_cast<size_t>(argc));
  return ds4::eval::run_program(arguments.empty() ? arguments : arguments.subspan(1));
}
