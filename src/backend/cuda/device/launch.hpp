// Launches of a pass's kernels, which overlap: a kernel may start while the one before it still runs.
//
// The rule. Kernels of a pass are launched by launch(), one after the other on one stream. Each of them calls
// wait_for_predecessor() in every thread before its first access to memory that another kernel of the pass
// writes, and before it writes memory that another kernel reads or writes, also on paths that return early.
// When that call returns, the kernel before is complete and what it wrote is visible; as it had waited too,
// so is everything earlier. Before the call a kernel may read weights, its arguments, row descriptions
// (copied before the pass starts) and what earlier passes left and this one does not write, such as older
// rows of the caches; nothing else. What a kernel of the pass writes is never read through the non-coherent
// path (__ldg, const __restrict__), nor through L1 where lines were read before the call that hold it. It
// calls start_successor() as early as there is nothing to gain from keeping its multiprocessors to itself;
// that call orders nothing. A kernel that knows the kernel two places before it to be complete when it
// starts, because the one between calls start_successor() only after its own wait, says so where it makes use
// of it. compute-sanitizer does not see a missing wait.
//
// Kernels that do none of this may stand in between: launched without launch() they wait for all before them,
// and one that never calls start_successor() lets the next start when it ends.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace ds4::cuda {

/// Compute capability 9.0, from which on kernels can overlap like this.
inline bool can_overlap_kernels() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

#ifdef __CUDACC__

__device__ __forceinline__ void start_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
                   cudaStream_t stream, std::type_identity_t<Parameters>... arguments) {
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_overlap_kernels() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

#endif

}  // namespace ds4::cuda
