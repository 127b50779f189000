// Descriptions of F16 matrices for the copy engine of sm_90.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace ds4::cuda {

/// F16 rows [rows][groups][cols] copied in boxes of box_rows x 1 x 64 elements, which arrive in the 128-byte
/// swizzle of ptx/wgmma.cuh. Columns from `cols` on and rows from `rows` on arrive as zeros.
struct HalfTensor {
  const __half* data = nullptr;  // aligned to 16 bytes
  uint32_t cols = 0;
  uint32_t rows = 0;
  uint64_t row_stride = 0;    // elements, a multiple of 8
  uint32_t box_rows = 0;      // at most 256
  uint32_t groups = 1;        // with more than one the map has three dimensions: column, group, row
  uint64_t group_stride = 0;  // elements, a multiple of 8
};

/// Asks the driver, without linking to it. cudaErrorNotSupported where the driver has no such maps,
/// cudaErrorInvalidValue when it refuses the arguments.
cudaError_t make_tensor_map(const HalfTensor& tensor, CUtensorMap& map);

}  // namespace ds4::cuda
