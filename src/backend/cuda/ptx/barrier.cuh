// Barriers in shared memory that count arrivals and bytes, and the copies of the copy engine that report to
// them (sm_90).
//
// A barrier counts arrivals of its phase; once all have come and all expected bytes are there, the next phase
// begins. Counting arrivals needs sm_80, the rest sm_90. Waiting names the parity of the phase that must be
// over: 0 for the first. Source: PTX ISA, "mbarrier".
#pragma once

#include <cstdint>

namespace ds4::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/// Call barrier_init_fence() and synchronise the block before the first use.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives once all cp.async copies of this thread so far have arrived; counts as one arrival.
__device__ __forceinline__ void barrier_arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// Arrives and raises the bytes that the phase waits for.
__device__ __forceinline__ void barrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool barrier_is_over(uint64_t* barrier, uint32_t parity) {
  uint32_t over;
  asm volatile(
      "{\n.reg .pred p;\n"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
      "selp.b32 %0, 1, 0, p;\n}\n"
      : "=r"(over)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return over != 0;
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!barrier_is_over(barrier, parity)) {
  }
}

/// Makes ordinary stores to shared memory visible to tensor cores and the copy engine; before a barrier, by
/// every thread that stored.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Threads `threads` (a multiple of 32) that name the same barrier 1 .. 15 of the block wait for each other.
__device__ __forceinline__ void sync_threads(uint32_t name, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// Copies by one thread. `map` is a CUtensorMap in parameter (`__grid_constant__`), constant or global memory;
// coordinates are elements, innermost first; what lies outside the tensor arrives as zeros and counts as
// bytes.

__device__ __forceinline__ void copy_tensor(void* shared, const void* map, uint64_t* barrier, int32_t x,
                                            int32_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}
__device__ __forceinline__ void copy_tensor(void* shared, const void* map, uint64_t* barrier, int32_t x,
                                            int32_t y, int32_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

}  // namespace ds4::cuda
