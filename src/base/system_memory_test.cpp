#include "base/system_memory.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

namespace ds4 {
namespace {

TEST(SystemMemory, IsSomeButNotMoreThanThereIs) {
  const auto physical =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_GT(available_memory_bytes(), uint64_t{1} << 20);
  EXPECT_LE(available_memory_bytes(), physical);
}

}  // namespace
}  // namespace ds4
