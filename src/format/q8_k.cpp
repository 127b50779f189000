#include "format/q8_k.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ds4::format {

void quantize_activations_q8_k(const float* row, size_t elements, BlockQ8_K* out) {
  for (size_t i = 0; i < elements; i += BlockQ8_K::kElements, ++out) {
    const float* x = row + i;
    float extreme = 0;
    for (size_t j = 0; j < BlockQ8_K::kElements; ++j) {
      if (std::fabs(x[j]) > std::fabs(extreme)) extreme = x[j];
    }
    const float inverse = -127.0f / extreme;
    if (!std::isfinite(inverse)) {  // zeros, or too small to have a reciprocal
      std::memset(out, 0, sizeof *out);
      continue;
    }
    out->d = 1.0f / inverse;
    for (size_t j = 0; j < BlockQ8_K::kElements; ++j) {
      out->q[j] = static_cast<int8_t>(std::clamp(std::nearbyint(inverse * x[j]), -128.0f, 127.0f));
    }
    for (size_t g = 0; g < 16; ++g) {
      int sum = 0;
      for (size_t j = 0; j < 16; ++j) sum += out->q[16 * g + j];
      out->sums[g] = static_cast<int16_t>(sum);
    }
  }
}

}  // namespace ds4::format
