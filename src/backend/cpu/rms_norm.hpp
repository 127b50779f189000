// Root-mean-square normalisation (docs/model.md §3.1).
#pragma once

#include <cmath>
#include <cstddef>

#include "backend/cpu/vector_ops.hpp"
#include "model/shape.hpp"

namespace ds4::cpu {

/// 1 / sqrt(mean of squares + 1e-6); n a multiple of 16.
inline float inverse_rms(const float* x, size_t n) {
  return 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + model::norm_epsilon);
}

/// out = x / rms(x) * weight; weight may be null (1), out may be x.
inline void rms_norm(const float* x, const float* weight, size_t n, float* out) {
  scale(x, inverse_rms(x, n), weight, n, out);
}

}  // namespace ds4::cpu
