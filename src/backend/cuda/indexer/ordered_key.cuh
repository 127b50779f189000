// F32 as an unsigned integer of the same order, for exact selection.
#pragma once

#include <cstdint>

namespace ds4::cuda {

/// Larger values have larger keys; the two zeros are equal, NaN equals -infinity.
__device__ inline uint32_t ordered_key(float value) {
  if (isnan(value)) value = -INFINITY;
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace ds4::cuda
