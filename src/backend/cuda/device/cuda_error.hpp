// CUDA failures inside the backend: thrown where they happen, turned into an Error at the seam.
#pragma once

#include <cuda_runtime.h>

#include "ds4/error.hpp"

namespace ds4::cuda {

struct CudaFailure {
  Error error;
};

/// Throws CudaFailure unless `status` is success; `what` names the kernel or call.
void check(cudaError_t status, const char* what);

}  // namespace ds4::cuda
