// Hyper-connections: how a sublayer reads the four residual streams and writes back to them (docs/model.md
// §4).
#pragma once

#include <array>
#include <cstddef>

#include "model/shape.hpp"

namespace ds4::cpu {

/// Mixing weights of one sublayer for one token.
struct HyperConnection {
  std::array<float, model::streams> pre;                    // weight of each stream in the sublayer's input
  std::array<float, model::streams> post;                   // weight of the sublayer's output in each stream
  std::array<float, model::streams * model::streams> comb;  // comb[j * 4 + k]: from stream j to stream k
};

/// Turns the 24 mix values (already divided by the RMS of the streams) into mixing weights: sigmoids for pre
/// and post, 20 Sinkhorn iterations for comb.
HyperConnection split_mix(const float* mix, const float* scale, const float* base);

/// Weights of the final merge from 4 mix values.
std::array<float, model::streams> split_head_mix(const float* mix, float scale, const float* base);

}  // namespace ds4::cpu
