#include "machine.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "build_facts.hpp"  // made by CMake
#include "common/progress.hpp"
#include "ds4/version.hpp"

namespace ds4::bench {

std::string processor_name(std::string_view cpuinfo) {
  constexpr std::string_view key = "model name";
  for (size_t begin = 0; begin < cpuinfo.size();) {
    const size_t end = std::min(cpuinfo.find('\n', begin), cpuinfo.size());
    const std::string_view line = cpuinfo.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string_view::npos) continue;
    const size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string_view::npos ? "" : std::string(line.substr(first));
  }
  return "";
}

Machine this_machine() {
  Machine machine;
  std::stringstream cpuinfo;
  cpuinfo << std::ifstream("/proc/cpuinfo").rdbuf();
  machine.processor = processor_name(cpuinfo.str());
  if (machine.processor.empty()) machine.processor = "unknown";
  machine.logical_processors = static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0) {
    machine.memory_bytes = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
  }
  utsname name{};
  if (uname(&name) == 0) machine.system = fmt::format("{} {} {}", name.sysname, name.release, name.machine);
  return machine;
}

std::string sentence(const Machine& machine) {
  return fmt::format("{}, {} logical processor{}, {}, {}", machine.processor, machine.logical_processors,
                     machine.logical_processors == 1 ? "" : "s", cli::human_bytes(machine.memory_bytes),
                     machine.system);
}

Build this_build() {
  return {version, facts::commit, facts::compiler, facts::build_type, facts::cuda};
}

std::string sentence(const Build& build) {
  return fmt::format("ds4 {} ({}), {}, {}, {} CUDA", build.version, build.commit, build.compiler, build.type,
                     build.cuda ? "with" : "without");
}

}  // namespace ds4::bench
