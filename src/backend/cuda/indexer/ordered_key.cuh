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

/// The value that ordered_key() gave this key; -infinity for NaN.
__device__ inline float ordered_key_value(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

}  // namespace ds4::cuda
