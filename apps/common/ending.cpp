#include "common/ending.hpp"

#include <unistd.h>

#include "common/console.hpp"
#include "common/interrupt.hpp"

namespace ds4::cli {

int failure(const Error& error) {
  if (error.code == ErrorCode::cancelled) return exit_interrupted;
  say_error(error.message);
  return exit_failure;
}

int print(std::string_view text) {
  Writer output(STDOUT_FILENO);
  if (output.write(text)) return exit_success;
  if (!output.pipe_closed()) say_error(output.error("standard output").message);
  return exit_failure;
}

}  // namespace ds4::cli
