// Sets device memory to one F32 value.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace ds4::cuda {

cudaError_t fill(float* data, size_t count, float value, cudaStream_t stream);

}  // namespace ds4::cuda
