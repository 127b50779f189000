// Matrix products for the rows (tokens) of a pass: out[r][row] = w[row] . x[r], several matrices in one
// launch.
#pragma once

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

struct GemvJob {
  DeviceMatrix w;
  DeviceActivations x;
  float* out = nullptr;
  uint32_t out_stride = 0;      // floats from one token's results to the next
  uint32_t rows_per_group = 0;  // 0: every row reads from column 0; a multiple of 4 otherwise
  uint32_t group_cols = 0;      // row r reads activation columns from (r / rows_per_group) * group_cols
};

struct GemvJobs {
  static constexpr int max_jobs = 8;
  GemvJob job[max_jobs];
  int count = 0;
};

/// All jobs for tokens [0, tokens), 1 <= tokens <= max_rows. F32, F16 and BF16 weights use x.f32, the others
/// x.codes and x.scales. A result depends on its row, its token and the shape of its matrix only:
/// bit-identical for any number of tokens and any other jobs. Planes and activations aligned to 16 bytes;
/// columns a multiple of 32 (256 for the 256-element formats, whose activation stride and group_cols are
/// multiples of 128). cudaErrorInvalidValue otherwise.
cudaError_t gemv(const GemvJobs& jobs, int tokens, cudaStream_t stream);

}  // namespace ds4::cuda
