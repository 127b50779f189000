// Copies from global to shared memory that run beside the arithmetic (sm_80 and later), and the int8
// tensor-core product.
//
// Fragment layouts of m16n8k32 for lane l, with g = l / 4 and c = l mod 4; a register holds four neighbours:
//   A[4]  (row g, k 4c)  (row g + 8, k 4c)  (row g, k 4c + 16)  (row g + 8, k 4c + 16)
//   B[2]  (k 4c, column g)  (k 4c + 16, column g)
//   C[4]  (row g, column 2c)  (row g, column 2c + 1)  (row g + 8, column 2c)  (row g + 8, column 2c + 1)
// Source: PTX ISA, "Matrix fragments for mma.m16n8k32".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ds4::cuda {

__device__ __forceinline__ void copy_16_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ __forceinline__ void copy_4_async(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
/// Until the copies of this thread have arrived.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// c = a . b + start in every element.
__device__ __forceinline__ void mma_s8(int (&c)[4], const uint32_t (&a)[4], uint2 b, int start) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(start));
}

}  // namespace ds4::cuda
