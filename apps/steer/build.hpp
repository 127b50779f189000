// A direction from pairs of prompts.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ds4/engine.hpp"
#include "options.hpp"
#include "prompts.hpp"

namespace ds4::steer {

/// Sums over pairs of captured activations, in F64.
class DirectionSums {
 public:
  DirectionSums(size_t layers, size_t width);

  /// Mean activations [layers][width] of the two prompts of a pair.
  void add(std::span<const float> good, std::span<const float> bad);
  size_t pairs() const { return pairs_; }

  /// normalise(mean of good - mean of bad), or the normalised mean of the normalised differences; without
  /// what lies along the mean of bad if asked. A zero vector stays zero.
  std::vector<float> directions(bool pair_normalize, bool orthogonalize) const;

 private:
  size_t layers_, width_, pairs_ = 0;
  std::vector<double> good_, bad_, differences_;  // [layers][width]
};

/// Captures every pair and writes NAME.f32 and NAME.json. `progress` gets (pairs done, pairs in all). Errors
/// name the prompt; cancelled after Ctrl+C.
Result<void> build_directions(const Options& options, const std::string& model_path, const Engine& engine,
                              const std::vector<Prompt>& good, const std::vector<Prompt>& bad,
                              const std::function<void(size_t, size_t)>& progress);

}  // namespace ds4::steer
