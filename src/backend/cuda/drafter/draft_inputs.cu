// What:   the drafter's small kernels: norms of what enters it, its streams, the lead of a draft.
// Layout: F32 rows of the model width; five rows for each token: its embedding, and four streams.
// Needs:  widths that are multiples of 32.
// Bytes:  64 KB of streams a token in and out for Flash, twice; 0.5 MB of logits for a lead.
// Why:    a few microseconds beside the drafter's layer; whole warps hold the blocks that are rounded
// together.
#include <cfloat>

#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/drafter/draft_inputs.hpp"
#include "backend/cuda/gemv/quantize_device.cuh"

namespace ds4::cuda {
namespace {

constexpr int threads = 256, summary_threads = 1024;
constexpr float epsilon = 1e-6f;

__device__ float warp_max(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

__global__ void __launch_bounds__(threads) inputs_kernel(DraftInputs in, int rows) {
  __shared__ float reduce[32];
  const int row = blockIdx.x, part = blockIdx.y;  // 0: embedding, then streams
  const size_t d = in.width;
  const float* x =
      part == 0 ? in.embedding + static_cast<size_t>(row) * 4 * d : in.before[row] + (part - 1) * d;
  const float* norm = part == 0 ? in.embedding_norm : in.hidden_norm;
  const size_t out = part == 0 ? row : static_cast<size_t>(rows) + 4 * row + part - 1;
  float squares = 0;
  for (uint32_t i = threadIdx.x; i < d; i += threads) squares = fmaf(x[i], x[i], squares);
  const float factor = 1.0f / sqrtf(block_sum(squares, reduce) / static_cast<float>(d) + epsilon);
  for (uint32_t i = threadIdx.x; i < d; i += threads) {  // whole warps: d is a multiple of 32
    const float y = x[i] * factor * norm[i];
    const size_t place = out * d + i;
    in.values[place] = y;
    const size_t block = place / 32;
    quantize_block_of_warp(y, in.codes + block * 32, in.scales + block);
  }
}

__global__ void __launch_bounds__(threads)
    streams_kernel(const float* embedding, const float* hidden, float* streams, uint32_t width) {
  const size_t row = blockIdx.y;  // of rows * 4
  const uint32_t i = blockIdx.x * threads + threadIdx.x;
  if (i < width) streams[row * width + i] = embedding[row / 4 * width + i] + hidden[row * width + i];
}

__global__ void __launch_bounds__(summary_threads)
    second_kernel(const float* logits, uint32_t vocabulary, DraftSummary* summary) {
  __shared__ float parts[32];
  const auto best = static_cast<uint32_t>(summary->logits.best);
  float largest = -FLT_MAX;
  for (uint32_t i = threadIdx.x; i < vocabulary; i += summary_threads) {
    if (i != best) largest = fmaxf(largest, logits[i]);
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x < 32) {
    largest = warp_max(parts[threadIdx.x]);
    if (threadIdx.x == 0) summary->second = largest;
  }
}

}  // namespace

cudaError_t draft_inputs(const DraftInputs& inputs, int rows, cudaStream_t stream) {
  if (inputs.width % 32 != 0) return cudaErrorInvalidValue;
  inputs_kernel<<<dim3(static_cast<unsigned>(rows), 5), threads, 0, stream>>>(inputs, rows);
  return cudaGetLastError();
}

cudaError_t draft_streams(const float* embedding, const float* hidden, float* streams, int rows,
                          uint32_t width, cudaStream_t stream) {
  const dim3 grid((width + threads - 1) / threads, static_cast<unsigned>(rows) * 4);
  streams_kernel<<<grid, threads, 0, stream>>>(embedding, hidden, streams, width);
  return cudaGetLastError();
}

cudaError_t second_best(const float* logits, uint32_t vocabulary, DraftSummary* summary,
                        cudaStream_t stream) {
  second_kernel<<<1, summary_threads, 0, stream>>>(logits, vocabulary, summary);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
