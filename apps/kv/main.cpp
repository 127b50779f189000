// Entry point of `ds4-kv`.
#include "program.hpp"

int main(int argc, char** argv) {
  return ds4::kv::run_program(argc, argv);
}
