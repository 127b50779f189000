// What: index and value of the largest finite logit of each row, the first of equal ones, and whether any
// logit
//   is NaN; on the way, a copy of the row.
// Layout: 32 blocks for a row, each a stride of the vocabulary; a warp for each row joins the 32 results.
// Preconditions: vocabulary at least 1; scratch of argmax_scratch_bytes().
// Bytes and FLOPs: 4 B a logit read once and written once (0.5 MB a row of 129,280), one comparison each.
// Why this shape: value and complement of the index form one integer, whose maximum needs no order.
#include "backend/cuda/indexer/ordered_key.cuh"
#include "backend/cuda/sampling/argmax.hpp"

namespace ds4::cuda {
namespace {

constexpr uint32_t blocks_per_row = 32;
constexpr int threads = 256;

using Best = unsigned long long;  // ordered key, then complement of the index

__device__ inline Best larger(Best a, Best b) {
  return a > b ? a : b;
}

/// The key of what is not finite is 0, below that of every number.
__device__ inline Best candidate(float value, uint32_t index) {
  const uint32_t key = isfinite(value) ? ordered_key(value) : 0u;
  return static_cast<Best>(key) << 32 | static_cast<uint32_t>(~index);
}

__global__ void __launch_bounds__(threads) part_kernel(ArgmaxArguments a) {
  __shared__ Best bests[threads / 32];
  const float* logits = a.logits + size_t{blockIdx.y} * a.vocabulary;
  float* copy = a.copies[blockIdx.y];
  Best best = 0;
  bool nan = false;
  for (uint32_t i = blockIdx.x * threads + threadIdx.x; i < a.vocabulary; i += blocks_per_row * threads) {
    const float value = logits[i];
    if (copy != nullptr) copy[i] = value;
    nan |= isnan(value);
    best = larger(best, candidate(value, i));
  }
  for (int step = 16; step > 0; step /= 2) best = larger(best, __shfl_xor_sync(0xffffffffu, best, step));
  if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
  const bool any_nan = __syncthreads_or(nan) != 0;
  if (threadIdx.x != 0) return;
  for (Best other : bests) best = larger(best, other);
  Best* out = static_cast<Best*>(a.scratch) + 2 * (blockIdx.y * blocks_per_row + blockIdx.x);
  out[0] = best;
  out[1] = any_nan ? 1 : 0;
}

__global__ void __launch_bounds__(32) join_kernel(ArgmaxArguments a) {
  const Best* part = static_cast<const Best*>(a.scratch) + 2 * (blockIdx.x * blocks_per_row + threadIdx.x);
  Best best = part[0];
  const bool nan = __any_sync(0xffffffffu, part[1] != 0) != 0;
  for (int step = 16; step > 0; step /= 2) best = larger(best, __shfl_xor_sync(0xffffffffu, best, step));
  if (threadIdx.x != 0) return;
  sampling::LogitSummary& summary = a.summaries[blockIdx.x];
  const auto index = ~static_cast<uint32_t>(best);
  const bool finite = (best >> 32) != 0;
  summary.best = finite ? static_cast<Token>(index) : -1;
  summary.maximum = finite ? a.logits[size_t{blockIdx.x} * a.vocabulary + index] : 0.0f;
  summary.has_nan = nan;
}

}  // namespace

size_t argmax_scratch_bytes(uint32_t row_count) {
  return size_t{row_count} * blocks_per_row * 2 * sizeof(Best);
}

cudaError_t argmax(const ArgmaxArguments& arguments, cudaStream_t stream) {
  part_kernel<<<dim3(blocks_per_row, arguments.row_count), threads, 0, stream>>>(arguments);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  join_kernel<<<arguments.row_count, 32, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
