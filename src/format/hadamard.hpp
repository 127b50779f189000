// The Hadamard transform of indexer rows (docs/model.md §3.5).
#pragma once

#include <cstddef>

namespace ds4::format {

inline constexpr size_t kHadamardWidth = 128;

/// In place on 128 values: Sylvester order, strides 1, 2, 4, ... 64, then times 128^(-1/2). Its own inverse.
void hadamard_128(float* values);

}  // namespace ds4::format
