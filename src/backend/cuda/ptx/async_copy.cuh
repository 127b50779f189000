// Copies from global to shared memory that run beside the arithmetic, and loads of matrix fragments from
// shared memory (sm_80 and later).
#pragma once

#include <cstdint>

namespace ds4::cuda {

/// 16 bytes; zeros unless `valid`, when nothing is read.
__device__ __forceinline__ void copy_16_async_if(uint32_t shared_address, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_16_async_if(void* shared, const void* global, bool valid) {
  copy_16_async_if(static_cast<uint32_t>(__cvta_generic_to_shared(shared)), global, valid);
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until at most `pending` groups that this thread committed are unfinished.
template <int pending>
__device__ __forceinline__ void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
/// Arrives at a barrier of barrier.cuh once all copies that this thread began so far are done.
__device__ __forceinline__ void arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
}

/// Four 8 x 8 matrices of 16-bit elements; lane l names row l mod 8 of matrix l / 8, and receives of each
/// matrix elements 2 (l mod 4) and the next of row l / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&fragment)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(shared_address)
               : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&fragment)[4], const void* row) {
  load_matrices(fragment, static_cast<uint32_t>(__cvta_generic_to_shared(row)));
}

/// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&fragment)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace ds4::cuda
