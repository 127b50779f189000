// What the kernels of experts.hpp share: formats by a run-time type, checks of shapes, shared memory for
// tables.
#pragma once

#include <type_traits>

#include "backend/cuda/gemv/row_dot.cuh"
#include "backend/cuda/moe/experts.hpp"

namespace ds4::cuda {

/// Calls f with the type as a compile-time constant; the branch is the same for the whole grid.
template <class F>
__device__ __forceinline__ void with_type(TensorType type, const F& f) {
  switch (type) {
    case TensorType::iq2_xxs:
      return f(std::integral_constant<TensorType, TensorType::iq2_xxs>{});
    case TensorType::q8_0:
      return f(std::integral_constant<TensorType, TensorType::q8_0>{});
    case TensorType::mxfp4:
      return f(std::integral_constant<TensorType, TensorType::mxfp4>{});
    case TensorType::q4_k:
      return f(std::integral_constant<TensorType, TensorType::q4_k>{});
    case TensorType::q2_k:
      return f(std::integral_constant<TensorType, TensorType::q2_k>{});
    case TensorType::f16:
      return f(std::integral_constant<TensorType, TensorType::f16>{});
    case TensorType::bf16:
      return f(std::integral_constant<TensorType, TensorType::bf16>{});
    default:
      return f(std::integral_constant<TensorType, TensorType::f32>{});
  }
}

inline bool is_256_block_type(TensorType type) {
  return type == TensorType::iq2_xxs || type == TensorType::q2_k || type == TensorType::q4_k;
}

inline bool fits(const DeviceMatrix& m, size_t rows, uint32_t cols, uint32_t stride, bool multiple) {
  if (chunk_columns(m.type) == 0 || m.cols != cols || cols > stride || stride % 32 != 0) return false;
  if (multiple ? m.rows % rows != 0 : m.rows != rows) return false;
  return is_256_block_type(m.type) ? cols % 256 == 0 && stride % 128 == 0 : cols % 32 == 0;
}

inline bool counts_fit(uint32_t tokens, uint32_t experts_per_token) {
  return tokens >= 1 && tokens <= max_rows && experts_per_token >= 1 && experts_per_token <= 32;
}

inline uint32_t table_bytes(bool needs_tables) {
  return needs_tables ? static_cast<uint32_t>(iq2_pairs_bytes) : 0;
}

/// More shared memory than the 48 KiB that need no asking.
template <class Kernel>
cudaError_t allow_tables(Kernel* kernel, bool needs_tables) {
  if (!needs_tables) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(iq2_pairs_bytes));
}

}  // namespace ds4::cuda
