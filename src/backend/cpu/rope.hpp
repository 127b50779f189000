// Rotary embedding of the last 64 values of a row (docs/model.md §3.2).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/shape.hpp"

namespace ds4::cpu {

inline constexpr size_t rope_pairs = model::rope_dim / 2;

/// Angular frequency of each pair, in F32 arithmetic as the reference implementations compute it.
/// compressed: base 160000 with YaRN (layers that compress); otherwise base 10000.
std::array<float, rope_pairs> rope_frequencies(bool compressed);

/// Cosines and sines of one position. The angle is the F32 product position * frequency, reduced exactly.
struct RopeAngles {
  std::array<float, rope_pairs> cosine;
  std::array<float, rope_pairs> sine;
};
RopeAngles rope_angles(uint64_t position, const std::array<float, rope_pairs>& frequencies);

/// Rotates the 64 values at `tail` (adjacent pairs); inverse turns the other way.
void rotate(float* tail, const RopeAngles& angles);
void rotate_inverse(float* tail, const RopeAngles& angles);

}  // namespace ds4::cpu
