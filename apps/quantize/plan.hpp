// What a conversion will do, before it does it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "recipe.hpp"
#include "tensor_map.hpp"

namespace ds4::quantize {

struct PlannedTensor {
  const MappedTensor* tensor = nullptr;
  format::TensorType type = format::TensorType::f32;

  uint64_t weights() const;
  uint64_t bytes() const;  // encoded
  /// Relative time of encoding, for progress.
  double cost() const;
};

/// Gives every tensor its format. An error names a tensor whose rows are not whole blocks of its format, and
/// gate and up experts of different formats.
Result<std::vector<PlannedTensor>> plan_tensors(std::span<const MappedTensor> tensors, const Recipe& recipe,
                                                uint32_t layers);

/// A line for each tensor, then sums by format.
std::string plan_text(std::span<const PlannedTensor> plan);

}  // namespace ds4::quantize
