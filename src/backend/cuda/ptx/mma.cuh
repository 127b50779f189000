// Tensor-core product of BF16 fragments, the transpose of a fragment, and packing of BF16 pairs (sm_80 and
// later).
//
// Fragment layouts of m16n8k16 for lane l, with g = l / 4 and c = l mod 4; a register holds two neighbours:
//   A[4]  (row g, k 2c)  (row g + 8, k 2c)  (row g, k 2c + 8)  (row g + 8, k 2c + 8)
//   B[2]  (k 2c, column g)  (k 2c + 8, column g)
//   C[4]  (row g, column 2c)  (row g, column 2c + 1)  (row g + 8, column 2c)  (row g + 8, column 2c + 1)
// Source: PTX ISA, "Matrix fragments for mma.m16n8k16".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace ds4::cuda {

__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Transposes the 8 x 8 matrix that a warp holds: lane l has (row l / 4, columns 2 (l mod 4) and the next).
__device__ inline uint32_t transpose_8x8(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

/// Two values as BF16, rounded to nearest; `low` takes the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ inline float bf16_low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float bf16_high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

/// Two values as a sum of two BF16 each: 16 significant bits.
__device__ inline void split_bf16(float low, float high, uint32_t& major, uint32_t& minor) {
  major = pack_bf16(low, high);
  minor = pack_bf16(low - bf16_low(major), high - bf16_high(major));
}

/// The same with F16: 22 bits, of magnitudes between 2^-14 and 65504; the sum is never off by more than 2^-25
/// below.
__device__ inline void split_f16(float low, float high, uint32_t& major, uint32_t& minor) {
  const __half2 pair = __floats2half2_rn(low, high);
  const float2 back = __half22float2(pair);
  const __half2 rest = __floats2half2_rn(low - back.x, high - back.y);
  major = *reinterpret_cast<const uint32_t*>(&pair);
  minor = *reinterpret_cast<const uint32_t*>(&rest);
}

/// Products of pairs. Exact where the results are BF16 numbers; subnormal numbers are kept.
__device__ inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t out;
  const uint32_t minus_zero = 0x80008000u;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(minus_zero));
  return out;
}

}  // namespace ds4::cuda
