// Where and with what a measurement was made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ds4::bench {

struct Machine {
  std::string processor;  // as the system names it; "unknown" if it does not
  unsigned logical_processors = 0;
  uint64_t memory_bytes = 0;
  std::string system;  // "Linux 6.1.0 x86_64"
};

Machine this_machine();
/// The processor's name in the text of /proc/cpuinfo; empty if there is none.
std::string processor_name(std::string_view cpuinfo);
/// "AMD EPYC, 32 logical processors, 125.5 GiB, Linux 6.1.0 x86_64"
std::string sentence(const Machine& machine);

struct Build {
  std::string version;
  std::string commit;    // "unknown" outside a git checkout
  std::string compiler;  // "GNU 12.2.0"
  std::string type;      // "Release"
  bool cuda = false;     // has the CUDA backend
};

Build this_build();
/// "ds4 0.1.0 (1a2b3c4d), GNU 12.2.0, Release, with CUDA"
std::string sentence(const Build& build);

}  // namespace ds4::bench
