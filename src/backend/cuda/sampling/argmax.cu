// What: index and value of the largest finite logit of each row, the first of equal ones, and whether any
// logit
//   is NaN; on the way, a copy of the row.
// Layout: a block for 2,048 logits of a row, a thread for 8 of them, 256 apart; the block of a row that ends
// last joins
//   the results of all.
// Preconditions: vocabulary at least 1; scratch that was prepared, which the kernel leaves prepared.
// Bytes and FLOPs: 4 B a logit read once and written once (0.5 MB a row of 129,280), one comparison each.
// Why this shape: all loads of a thread are in flight before the first is used; value and complement of the
// index
//   form one integer, whose maximum needs no order.
#include "backend/cuda/indexer/ordered_key.cuh"
#include "backend/cuda/sampling/argmax.hpp"

namespace ds4::cuda {
namespace {

constexpr int threads = 256;
constexpr uint32_t logits_per_thread = 8;
constexpr uint32_t block_logits = threads * logits_per_thread;
constexpr uint32_t all_lanes = 0xffffffffu;

using Best = unsigned long long;  // ordered key, then complement of the index

struct Part {
  Best best;
  uint32_t has_nan;
};

__host__ __device__ inline uint32_t blocks_per_row(uint32_t vocabulary) {
  return (vocabulary + block_logits - 1) / block_logits;
}

/// The key of what is not finite is 0, below that of every number.
__device__ inline Best candidate(float value, uint32_t index) {
  const uint32_t key = isfinite(value) ? ordered_key(value) : 0u;
  return static_cast<Best>(key) << 32 | static_cast<uint32_t>(~index);
}

/// The best of the block, and whether any thread saw NaN, in thread 0.
__device__ inline Part join(Best best, bool has_nan, Best* warp_bests) {
  for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(all_lanes, best, step));
  if (threadIdx.x % 32 == 0) warp_bests[threadIdx.x / 32] = best;
  const bool any_nan = __syncthreads_or(has_nan) != 0;
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < threads / 32; ++warp) best = max(best, warp_bests[warp]);
  }
  return {best, any_nan ? 1u : 0u};
}

// Scratch: for every row a count of the blocks that have ended, zero between calls; then the parts of all
// rows.
__global__ void __launch_bounds__(threads) argmax_kernel(ArgmaxArguments a) {
  __shared__ Best warp_bests[threads / 32];
  __shared__ bool last_of_row;
  const uint32_t row = blockIdx.y, blocks = gridDim.x;
  auto* ended = static_cast<uint32_t*>(a.scratch) + row;
  Part* parts = reinterpret_cast<Part*>(static_cast<uint32_t*>(a.scratch) + max_rows) + size_t{row} * blocks;
  const float* logits = a.logits + size_t{row} * a.vocabulary;
  float* copy = a.copies[row];
  const uint32_t first = blockIdx.x * block_logits + threadIdx.x;

  float values[logits_per_thread];
#pragma unroll
  for (uint32_t j = 0; j < logits_per_thread; ++j) {
    const uint32_t i = first + j * threads;
    values[j] = i < a.vocabulary ? logits[i] : -INFINITY;
  }
  Best best = 0;
  bool nan = false;
#pragma unroll
  for (uint32_t j = 0; j < logits_per_thread; ++j) {
    const uint32_t i = first + j * threads;
    if (i < a.vocabulary && copy != nullptr) copy[i] = values[j];
    nan |= isnan(values[j]);
    best = max(best, candidate(values[j], i));
  }
  const Part part = join(best, nan, warp_bests);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = part;
    __threadfence();                                           // before it counts as written
    last_of_row = atomicInc(ended, blocks - 1) == blocks - 1;  // the last one resets the count
    __threadfence();
  }
  __syncthreads();
  if (!last_of_row) return;

  best = 0;
  nan = false;
  for (uint32_t b = threadIdx.x; b < blocks; b += threads) {
    best = max(best, __ldcg(&parts[b].best));
    nan |= __ldcg(&parts[b].has_nan) != 0;
  }
  const Part whole = join(best, nan, warp_bests);
  if (threadIdx.x != 0) return;
  sampling::LogitSummary& summary = a.summaries[row];
  const auto index = ~static_cast<uint32_t>(whole.best);
  const bool finite = (whole.best >> 32) != 0;
  summary.best = finite ? static_cast<Token>(index) : -1;
  summary.maximum = finite ? logits[index] : 0.0f;
  summary.has_nan = whole.has_nan != 0;
}

}  // namespace

size_t argmax_scratch_bytes(uint32_t row_count, uint32_t vocabulary) {
  return max_rows * sizeof(uint32_t) + size_t{row_count} * blocks_per_row(vocabulary) * sizeof(Part);
}

cudaError_t prepare_argmax_scratch(void* scratch, cudaStream_t stream) {
  return cudaMemsetAsync(scratch, 0, max_rows * sizeof(uint32_t), stream);
}

cudaError_t argmax(const ArgmaxArguments& arguments, cudaStream_t stream) {
  const dim3 grid(blocks_per_row(arguments.vocabulary), arguments.row_count);
  argmax_kernel<<<grid, threads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
