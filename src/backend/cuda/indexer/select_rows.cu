// What: the top_k rows of largest score, ascending by row; equal scores go to the lower row.
// Layout: one block for a row of the pass. Three passes of a radix search (11, 11 and 10 bits from the top)
// find the
//   key of the last chosen row and how many rows of that very key belong; a fourth compacts in row order.
// Preconditions: scores of visible rows; visible > top_k (other rows return at once). Score rows on 16 bytes.
// Bytes and FLOPs: four reads of 4 B a visible row, from L2: 0.5 MB for 128k tokens.
// Why this shape: exact and the same for any number of equal scores; histograms need no order, only sums of
// integers.
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/indexer/indexer.hpp"
#include "backend/cuda/indexer/ordered_key.cuh"

namespace ds4::cuda {
namespace {

constexpr int threads = 1024;
constexpr int bins = 2048;
constexpr uint32_t keys_per_thread = 8;
constexpr uint32_t keys_per_step = threads * keys_per_thread;

struct Shared {
  uint32_t histogram[bins];
  uint32_t warp_sums[32];
  uint32_t bin;   // the digit of the last chosen key
  uint32_t left;  // rows still to choose among those with this digit
};

/// Sum over the threads before this one; `total` is the block's sum.
__device__ inline uint32_t exclusive_sum(uint32_t value, uint32_t* warp_sums, uint32_t& total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t inclusive = value;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  uint32_t sums = warp_sums[lane];
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, sums, step);
    if (lane >= step) sums += other;
  }
  total = __shfl_sync(0xffffffffu, sums, 31);
  const uint32_t before = __shfl_sync(0xffffffffu, sums, warp == 0 ? 0 : warp - 1);
  __syncthreads();  // warp_sums may be written again
  return inclusive - value + (warp == 0 ? 0u : before);
}

/// Counts the digits of the keys whose higher bits are `prefix`.
__device__ inline void count_digits(const float* scores, uint32_t visible, uint32_t prefix,
                                    uint32_t prefix_mask, int shift, uint32_t digit_mask,
                                    uint32_t* histogram) {
  for (uint32_t i = 4 * threadIdx.x; i < visible; i += 4 * threads) {
    const float4 v = *reinterpret_cast<const float4*>(scores + i);
    const float value[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t key = ordered_key(value[j]);
      if (i + j < visible && (key & prefix_mask) == prefix)
        atomicAdd(&histogram[key >> shift & digit_mask], 1u);
    }
  }
}

/// Finds the bin, from the top, in which the `left`-th key lies; thread t looks at the bins 2 t and 2 t + 1
/// from the top.
__device__ inline void find_bin(Shared& shared, uint32_t left) {
  const uint32_t top = bins - 1 - 2 * threadIdx.x;
  const uint32_t first = shared.histogram[top], second = shared.histogram[top - 1];
  uint32_t total;
  const uint32_t before = exclusive_sum(first + second, shared.warp_sums, total);
  if (before < left && left <= before + first) {
    shared.bin = top;
    shared.left = left - before;
  } else if (before + first < left && left <= before + first + second) {
    shared.bin = top - 1;
    shared.left = left - before - first;
  }
  __syncthreads();
}

/// Writes rows with a key above `threshold`, and the first `equal_left` with that very key, in row order.
__device__ inline void compact(const float* scores, uint32_t visible, uint32_t threshold, uint32_t equal_left,
                               Shared& shared, uint32_t* selected) {
  uint32_t written_above = 0, seen_equal = 0;
  for (uint32_t base = 0; base < visible; base += keys_per_step) {
    const uint32_t first = base + threadIdx.x * keys_per_thread;
    uint32_t above = 0, equal = 0;  // one bit a row
#pragma unroll
    for (uint32_t j = 0; j < keys_per_thread; j += 4) {
      if (first + j >= visible) break;
      const float4 v = *reinterpret_cast<const float4*>(scores + first + j);
      const float value[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        if (first + j + k >= visible) continue;
        const uint32_t key = ordered_key(value[k]);
        above |= (key > threshold ? 1u : 0u) << (j + k);
        equal |= (key == threshold ? 1u : 0u) << (j + k);
      }
    }
    uint32_t total;
    const uint32_t before =
        exclusive_sum(__popc(above) | __popc(equal) << 16, shared.warp_sums, total);  // at most 8192 each
    uint32_t above_before = written_above + (before & 0xffffu), equal_before = seen_equal + (before >> 16);
    for (uint32_t j = 0; j < keys_per_thread; ++j) {
      const bool is_above = (above >> j & 1u) != 0, is_equal = (equal >> j & 1u) != 0;
      if (is_above || (is_equal && equal_before < equal_left)) {
        selected[above_before + min(equal_before, equal_left)] = first + j;
      }
      above_before += is_above ? 1u : 0u;
      equal_before += is_equal ? 1u : 0u;
    }
    written_above += total & 0xffffu;
    seen_equal += total >> 16;
  }
}

__global__ void __launch_bounds__(threads) select_kernel(IndexerArguments a, size_t stride) {
  __shared__ Shared shared;
  start_successor();
  wait_for_predecessor();
  const uint32_t visible = visible_rows(a.rows[blockIdx.x].position, 4);
  if (visible <= a.top_k) return;
  const float* scores = a.scores + blockIdx.x * stride;
  uint32_t prefix = 0, prefix_mask = 0, left = a.top_k;
  constexpr int shifts[3] = {21, 10, 0};
  constexpr uint32_t digit_masks[3] = {2047, 2047, 1023};
#pragma unroll
  for (int pass = 0; pass < 3; ++pass) {
    shared.histogram[threadIdx.x] = 0;
    shared.histogram[threadIdx.x + threads] = 0;
    __syncthreads();
    count_digits(scores, visible, prefix, prefix_mask, shifts[pass], digit_masks[pass], shared.histogram);
    __syncthreads();
    find_bin(shared, left);
    prefix |= shared.bin << shifts[pass];
    prefix_mask |= digit_masks[pass] << shifts[pass];
    left = shared.left;
    __syncthreads();
  }
  compact(scores, visible, prefix, left, shared, a.selected + size_t{blockIdx.x} * a.top_k);
}

}  // namespace

cudaError_t select_rows(const IndexerArguments& arguments, cudaStream_t stream) {
  if (arguments.max_compressed <= arguments.top_k) return cudaSuccess;
  return launch(select_kernel, arguments.row_count, threads, 0, stream, arguments,
                index_score_stride(arguments.max_compressed));
}

}  // namespace ds4::cuda
