#include <cuda_runtime.h>

#include "backend/cuda/device/warpgroup.hpp"

namespace ds4::cuda {
namespace {

/// Has static shared memory only where warpgroup products are compiled; never launched.
__global__ void probe_kernel(int* out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __shared__ int marker[32];
  marker[threadIdx.x] = *out;
  __syncthreads();
  *out = marker[31 - threadIdx.x];
#else
  *out = 0;
#endif
}

}  // namespace

bool has_warpgroup_products() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return attributes.sharedSizeBytes > 0;
}

}  // namespace ds4::cuda
