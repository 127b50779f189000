// What:   reads a buffer once and keeps nothing.
// Layout: 16-byte words; thread t of T reads words t, t + T, t + 2T, ...
// Needs:  a number of words that is a multiple of 8T; every word made of one repeated byte.
// Bytes:  the buffer's, once; no writes.
// Why:    the rate of the plainest kernel there is, as the ceiling for kernels that also compute.
#include "backend/cuda/device/read_bandwidth.hpp"

namespace ds4::cuda {
namespace {

constexpr int blocks = 528, threads = 512;  // four blocks on each processor of an H200
constexpr int loads = 8;                    // in flight for each thread
static_assert(read_step_words == size_t{blocks} * threads * loads);

__global__ void __launch_bounds__(threads)
    read_kernel(const uint4* __restrict__ words, size_t count, uint32_t* sink) {
  constexpr size_t stride = size_t{blocks} * threads;
  uint32_t folded = 0;
  for (size_t i = size_t{blockIdx.x} * threads + threadIdx.x; i < count; i += read_step_words) {
    uint4 word[loads];
#pragma unroll
    for (int j = 0; j < loads; ++j) word[j] = __ldcs(words + i + j * stride);
#pragma unroll
    for (int j = 0; j < loads; ++j) folded ^= word[j].x ^ word[j].y ^ word[j].z ^ word[j].w;
  }
  // Equal parts cancel, so this is never true; without it the loads could be left out.
  if (folded != 0) *sink = folded;
}

}  // namespace

cudaError_t read_words(const uint4* words, size_t count, uint32_t* sink, cudaStream_t stream) {
  if (count % read_step_words != 0) return cudaErrorInvalidValue;
  read_kernel<<<blocks, threads, 0, stream>>>(words, count, sink);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
