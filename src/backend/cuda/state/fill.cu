// What:   sets device memory to one F32 value; minus infinity, unlike zero, is not a repeated byte.
// Layout: flat.
// Needs:  nothing.
// Bytes:  4 for every value.
// Why:    runs when a sequence is made, never in a pass.
#include "backend/cuda/state/fill.hpp"

namespace ds4::cuda {
namespace {

__global__ void fill_kernel(float* data, size_t count, float value) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    data[i] = value;
  }
}

}  // namespace

cudaError_t fill(float* data, size_t count, float value, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  fill_kernel<<<64, 256, 0, stream>>>(data, count, value);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
