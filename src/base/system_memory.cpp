#include "base/system_memory.hpp"

#include <unistd.h>

#include <fstream>
#include <string>

namespace ds4 {

uint64_t available_memory_bytes() {
  std::ifstream info("/proc/meminfo");
  std::string label, unit;
  uint64_t kib = 0;
  while (info >> label >> kib) {
    if (label == "MemAvailable:") return kib * 1024;
    std::getline(info, unit);
  }
  const long pages = sysconf(_SC_AVPHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : 0;
}

}  // namespace ds4
