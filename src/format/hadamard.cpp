#include "format/hadamard.hpp"

namespace ds4::format {

void hadamard_128(float* values) {
  for (size_t stride = 1; stride < kHadamardWidth; stride *= 2) {
    for (size_t base = 0; base < kHadamardWidth; base += 2 * stride) {
      for (size_t i = base; i < base + stride; ++i) {
        const float a = values[i], b = values[i + stride];
        values[i] = a + b;
        values[i + stride] = a - b;
      }
    }
  }
  for (size_t i = 0; i < kHadamardWidth; ++i) values[i] *= 0.08838834764831845f;
}

}  // namespace ds4::format
