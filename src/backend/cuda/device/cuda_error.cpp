#include "backend/cuda/device/cuda_error.hpp"

#include "base/error.hpp"

namespace ds4::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // else the next launch would report it once more; a sticky error comes back
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::internal;
  throw CudaFailure{fail(code, "CUDA: {}: {}", what, cudaGetErrorString(status))};
}

}  // namespace ds4::cuda
