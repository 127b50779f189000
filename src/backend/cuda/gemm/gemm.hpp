// Matrix products on tensor cores for passes of many tokens: out[r][row] = w[row] . x[r], several matrices in
// one call.
#pragma once

#include "backend/cuda/gemv/gemv.hpp"

namespace ds4::cuda {

/// The most tokens of one call.
inline constexpr int max_gemm_tokens = 256;

/// All jobs for tokens [0, tokens), 1 <= tokens <= max_gemm_tokens, with the jobs, alignments and column
/// rules of gemv(); rows_per_group may be any number. A result depends on its row, its token and the shape of
/// its matrix only: bit-identical for any number of tokens and any other jobs, but not to gemv(). F32, F16
/// and BF16 weights are multiplied as sums of two BF16 each: off by up to 2^-16 of the sum of magnitudes.
/// cudaErrorInvalidValue otherwise.
cudaError_t gemm(const GemvJobs& jobs, int tokens, cudaStream_t stream);

}  // namespace ds4::cuda
