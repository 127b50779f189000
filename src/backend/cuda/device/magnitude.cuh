// The order of magnitudes with NaN in it.
#pragma once

#include <cstdint>

namespace ds4::cuda {

/// The bits of |x|: their order as whole numbers is that of the magnitudes, with NaN above all of them, where
/// fmaxf() would drop it.
__device__ __forceinline__ uint32_t magnitude_bits(float x) {
  return __float_as_uint(fabsf(x));
}

}  // namespace ds4::cuda
