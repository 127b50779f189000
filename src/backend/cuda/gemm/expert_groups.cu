// Slots of a pass sorted by expert, then token, and cut into tiles: one block of 1024 threads.
// Layout: expert_scratch.cuh. Preconditions: expert_gemm.hpp. Bytes: the ids, a few KB. Why: every token sets
// its bit in the mask of its experts; the place of a slot is the number of bits below its own and of slots of
// smaller experts, so the order of the atomic operations cannot show. An expert that appears twice in one
// token (a table in a file may say so) has fewer bits than slots: then places are counted one by one.
#include "backend/cuda/gemm/expert_gemm.hpp"
#include "backend/cuda/gemm/expert_scratch.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t threads = 1024;
constexpr uint32_t mask_words = max_gemm_tokens / 32;

/// Sum of `value` over the threads before this one.
__device__ uint32_t prefix_of_block(uint32_t value) {
  __shared__ uint32_t warp_sums[threads / 32];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t below = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += below;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    uint32_t all = warp_sums[lane];
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t below = __shfl_up_sync(~0u, all, step);
      if (lane >= step) all += below;
    }
    warp_sums[lane] = all;
  }
  __syncthreads();
  return sum - value + (warp == 0 ? 0u : warp_sums[warp - 1]);
}

__global__ void __launch_bounds__(threads) groups_kernel(ExpertGroups groups, ExpertScratch scratch) {
  extern __shared__ uint32_t masks[];  // [experts][mask_words]
  __shared__ uint32_t counts[threads], starts[threads];
  const uint32_t k_count = groups.experts_per_token, entries = groups.tokens * k_count;
  for (uint32_t i = threadIdx.x; i < groups.experts * mask_words; i += threads) masks[i] = 0;
  counts[threadIdx.x] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < entries; i += threads) {
    const uint32_t expert = static_cast<uint32_t>(groups.ids[i]), token = i / k_count;
    atomicOr(&masks[expert * mask_words + token / 32], 1u << token % 32);
    atomicAdd(&counts[expert], 1u);
  }
  __syncthreads();
  const uint32_t count = counts[threadIdx.x];
  const uint32_t tiles = (count + expert_tile_tokens - 1) / expert_tile_tokens;
  const uint32_t before = prefix_of_block(count << 16 | tiles);  // at most 8192 and 1280
  const uint32_t start = before >> 16, first_tile = before & 0xffffu;
  starts[threadIdx.x] = start;
  uint32_t bits = 0;
  if (threadIdx.x < groups.experts) {
    for (uint32_t word = 0; word < mask_words; ++word) bits += __popc(masks[threadIdx.x * mask_words + word]);
  }
  for (uint32_t t = 0; t < tiles; ++t) {
    const uint32_t first = t * expert_tile_tokens;
    scratch.tiles[first_tile + t] = {threadIdx.x, start + first, min(count - first, expert_tile_tokens)};
  }
  if (threadIdx.x == threads - 1) *scratch.tile_count = first_tile + tiles;
  const bool repeats = __syncthreads_or(bits != count) != 0;
  for (uint32_t i = threadIdx.x; i < entries; i += threads) {
    const uint32_t expert = static_cast<uint32_t>(groups.ids[i]), token = i / k_count;
    uint32_t place = starts[expert];
    if (repeats) {
      for (uint32_t j = 0; j < i; ++j) place += static_cast<uint32_t>(groups.ids[j]) == expert ? 1u : 0u;
    } else {
      const uint32_t* const mask = masks + expert * mask_words;
      for (uint32_t word = 0; word < token / 32; ++word) place += __popc(mask[word]);
      place += __popc(mask[token / 32] & ((1u << token % 32) - 1));
    }
    scratch.slots[place] = token * (k_count + 1) + i % k_count;
  }
}

bool is_valid(const ExpertGroups& groups) {
  return groups.tokens >= 1 && groups.tokens <= max_gemm_tokens && groups.experts_per_token >= 1 &&
         groups.experts_per_token <= 32 && groups.experts >= 1 && groups.experts <= threads;
}

}  // namespace

size_t expert_groups_bytes(uint32_t tokens, uint32_t experts_per_token, uint32_t experts) {
  return 16 + max_expert_tiles(tokens, experts_per_token, experts) * sizeof(ExpertTile) +
         size_t{tokens} * experts_per_token * sizeof(uint32_t);
}

cudaError_t expert_groups(const ExpertGroups& groups, cudaStream_t stream) {
  if (!is_valid(groups)) return cudaErrorInvalidValue;
  groups_kernel<<<1, threads, groups.experts * mask_words * sizeof(uint32_t), stream>>>(
      groups, expert_scratch(groups));
  return cudaPeekAtLastError();
}

}  // namespace ds4::cuda
