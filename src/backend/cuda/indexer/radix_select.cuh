// Exact choice of the largest keys by radix search, for one block of threads; equal keys go to the lower row.
//
// Three passes (11, 11 and 10 bits from the top) find the key of the last chosen row and how many rows of
// that very key belong; a fourth compacts in row order. Histograms need no order, only sums of integers, so
// the result is the same whatever the threads do first. A source of keys has `void load(uint32_t first,
// uint32_t (&key)[4])` for a `first` that is a multiple of 4; what it gives past the end is ignored.
#pragma once

#include <cstdint>

#include "backend/cuda/indexer/ordered_key.cuh"

namespace ds4::cuda {

inline constexpr uint32_t radix_bins = 2048;

struct RadixShared {
  uint32_t histogram[radix_bins];
  uint32_t warp_sums[32];
  uint32_t bin;   // the digit of the last chosen key
  uint32_t left;  // rows still to choose among those with this digit
};

/// Scores in global memory, on 16 bytes.
struct ScoreKeys {
  const float* scores;
  __device__ void load(uint32_t first, uint32_t (&key)[4]) const {
    const float4 v = *reinterpret_cast<const float4*>(scores + first);
    key[0] = ordered_key(v.x);
    key[1] = ordered_key(v.y);
    key[2] = ordered_key(v.z);
    key[3] = ordered_key(v.w);
  }
};

/// Sum over the threads before this one; `total` is the block's sum.
template <int kThreads>
__device__ inline uint32_t exclusive_sum(uint32_t value, uint32_t* warp_sums, uint32_t& total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t inclusive = value;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  uint32_t sums = lane < kThreads / 32 ? warp_sums[lane] : 0u;
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
template <int kThreads, class Keys>
__device__ inline void count_digits(const Keys& keys, uint32_t count, uint32_t prefix, uint32_t prefix_mask,
                                    int shift, uint32_t digit_mask, uint32_t* histogram) {
  for (uint32_t i = 4 * threadIdx.x; i < count; i += 4 * kThreads) {
    uint32_t key[4];
    keys.load(i, key);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      if (i + j < count && (key[j] & prefix_mask) == prefix)
        atomicAdd(&histogram[key[j] >> shift & digit_mask], 1u);
    }
  }
}

/// Finds the bin, from the top, in which the `left`-th key lies.
template <int kThreads>
__device__ inline void find_bin(RadixShared& shared, uint32_t left) {
  constexpr int own = radix_bins / kThreads;
  const uint32_t top = radix_bins - 1 - own * threadIdx.x;
  uint32_t in_bin[own], sum = 0, total;
#pragma unroll
  for (int i = 0; i < own; ++i) sum += in_bin[i] = shared.histogram[top - i];
  uint32_t before = exclusive_sum<kThreads>(sum, shared.warp_sums, total);
#pragma unroll
  for (int i = 0; i < own; ++i) {
    if (before < left && left <= before + in_bin[i]) {
      shared.bin = top - i;
      shared.left = left - before;
    }
    before += in_bin[i];
  }
  __syncthreads();
}

/// Writes rows with a key above `threshold`, and the first `equal_left` with that very key, in row order.
template <int kThreads, class Keys>
__device__ inline void compact(const Keys& keys, uint32_t count, uint32_t threshold, uint32_t equal_left,
                               RadixShared& shared, uint32_t* selected) {
  constexpr uint32_t keys_per_thread = 8;
  uint32_t written_above = 0, seen_equal = 0;
  for (uint32_t base = 0; base < count; base += kThreads * keys_per_thread) {
    const uint32_t first = base + threadIdx.x * keys_per_thread;
    uint32_t above = 0, equal = 0;  // one bit a row
#pragma unroll
    for (uint32_t j = 0; j < keys_per_thread; j += 4) {
      if (first + j >= count) break;
      uint32_t key[4];
      keys.load(first + j, key);
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        if (first + j + k >= count) continue;
        above |= (key[k] > threshold ? 1u : 0u) << (j + k);
        equal |= (key[k] == threshold ? 1u : 0u) << (j + k);
      }
    }
    uint32_t total;
    const uint32_t before = exclusive_sum<kThreads>(__popc(above) | __popc(equal) << 16, shared.warp_sums,
                                                    total);  // at most 8192 each
    uint32_t above_before = written_above + (before & 0xffffu), equal_before = seen_equal + (before >> 16);
    for (uint32_t rows = above | equal; rows != 0; rows &= rows - 1) {
      const uint32_t j = __ffs(static_cast<int>(rows)) - 1;
      const bool is_above = (above >> j & 1u) != 0;
      if (is_above || equal_before < equal_left) {
        selected[above_before + min(equal_before, equal_left)] = first + j;
      }
      above_before += is_above ? 1u : 0u;
      equal_before += is_above ? 0u : 1u;
    }
    written_above += total & 0xffffu;
    seen_equal += total >> 16;
  }
}

/// The `top_k` largest of `count` keys, ascending by row; top_k < count.
template <int kThreads, class Keys>
__device__ inline void radix_select(const Keys& keys, uint32_t count, uint32_t top_k, RadixShared& shared,
                                    uint32_t* selected) {
  uint32_t prefix = 0, prefix_mask = 0, left = top_k;
  constexpr int shifts[3] = {21, 10, 0};
  constexpr uint32_t digit_masks[3] = {2047, 2047, 1023};
#pragma unroll
  for (int pass = 0; pass < 3; ++pass) {
    for (uint32_t i = threadIdx.x; i < radix_bins; i += kThreads) shared.histogram[i] = 0;
    __syncthreads();
    count_digits<kThreads>(keys, count, prefix, prefix_mask, shifts[pass], digit_masks[pass],
                           shared.histogram);
    __syncthreads();
    find_bin<kThreads>(shared, left);
    prefix |= shared.bin << shifts[pass];
    prefix_mask |= digit_masks[pass] << shifts[pass];
    left = shared.left;
    __syncthreads();
  }
  compact<kThreads>(keys, count, prefix, left, shared, selected);
}

}  // namespace ds4::cuda
