// Steering: the direction of a layer taken out of what one of its parts computed (docs/model.md §13).
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/device_types.hpp"
#include "ds4/steering.hpp"

namespace ds4::cuda {

struct OutputEdit {
  float* out = nullptr;              // [rows][width], in place
  const float* direction = nullptr;  // [width]
  const RowInfo* rows = nullptr;     // their steering scales
  Component component = Component::feed_forward;
  uint32_t width = 0;
};

/// out[r] -= scale[r] * direction * (direction . out[r]); rows of scale 0 are left alone. A row's result
/// depends on the row only.
cudaError_t edit_output(const OutputEdit& edit, int rows, cudaStream_t stream);

}  // namespace ds4::cuda
