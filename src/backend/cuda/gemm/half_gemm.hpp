// Matrix products of a prefill pass on tensor cores with F16 operands and F32 sums: out[r][row] = w[row] .
// x[r].
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <span>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

/// Activations of the tokens of a prefill pass, value = high + low. `low` may be null: then F16 precision.
struct HalfActivations {
  const __half* high = nullptr;  // [tokens][stride]
  const __half* low = nullptr;   // [tokens][stride]
  uint32_t stride = 0;           // a multiple of 32
};

/// Exactly one of `out` and `out_half` is set. With `x.low` the product has about F32 precision at twice the
/// arithmetic (F16 weights) or three times (all others, whose values are split likewise): for the small
/// matrices whose results are compared with each other (router, index weights).
struct HalfGemmJob {
  DeviceMatrix w;
  HalfActivations x;
  float* out = nullptr;
  __half* out_half = nullptr;   // rounded to nearest, clamped to the finite range
  uint32_t out_stride = 0;      // elements from one token's results to the next
  uint32_t rows_per_group = 0;  // 0: every row reads from column 0
  uint32_t group_cols = 0;      // row r reads activation columns from (r / rows_per_group) * group_cols
};

/// Device bytes for the F16 form of the weights of all jobs of one call (nothing for plain F16); reads `w`
/// and whether `x.low` is set. The scratch is aligned to 256 bytes, and free again for the next call in the
/// stream.
size_t half_gemm_scratch_bytes(std::span<const HalfGemmJob> jobs);

/// Any number of jobs and tokens; columns a multiple of 32. Small matrices that read the same activations
/// belong into one call: their tiles share one launch. A result depends on its row, its token and the shape
/// of its matrix only: bit-identical for any number of tokens and any other jobs. Products of two columns are
/// exact in F32; sums run over the columns in ascending order in steps of the tensor cores.
/// cudaErrorInvalidValue when shapes or alignment (16 bytes) are wrong.
cudaError_t half_gemm(std::span<const HalfGemmJob> jobs, int tokens, void* scratch, cudaStream_t stream,
                      PrefillKernel kernel = PrefillKernel::best);

}  // namespace ds4::cuda
