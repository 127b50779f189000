#include <cmath>

#include "ds4/memory.hpp"

namespace ds4 {

uint64_t MemoryPlan::weight_bytes() const {
  uint64_t sum = 0;
  for (const Part& part : weights) sum += part.bytes;
  return sum;
}

uint64_t MemoryPlan::session_total_bytes(uint64_t context) const {
  return session_bytes + anchor_bytes +
         static_cast<uint64_t>(std::ceil(bytes_per_token * static_cast<double>(context)));
}

uint64_t MemoryPlan::left_bytes() const {
  const uint64_t needed = weight_bytes() + scratch_bytes;
  return available_bytes > needed ? available_bytes - needed : 0;
}

uint64_t MemoryPlan::sessions(uint64_t context) const {
  const uint64_t each = session_total_bytes(context);
  return each == 0 ? 0 : left_bytes() / each;
}

}  // namespace ds4
