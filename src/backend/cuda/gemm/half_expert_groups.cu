// Slots of a pass sorted by expert, then token, cut into tiles; activations in the kernels' column order.
// Layout: half_expert_scratch.cuh. Preconditions: half_experts.hpp. Bytes: every block of the sort reads all
// ids from L2 (0.1 MB for 4096 tokens of 6); the gathering reads x once and writes it K + 1 times. Why: one
// block counts and places the slots of one expert in the order of the ids, so that no atomic operation can
// change an order, and an expert may appear twice in one token.
#include "backend/cuda/gemm/half_expert_scratch.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t threads = 1024;
constexpr uint32_t gather_threads = 256;

/// Sum of `value` over the threads before this one; `all` becomes the sum over the block.
__device__ uint32_t prefix_of_block(uint32_t value, uint32_t& all) {
  __shared__ uint32_t warp_sums[threads / 32];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t below = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += below;
  }
  __syncthreads();
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    uint32_t before = warp_sums[lane];
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t below = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += below;
    }
    warp_sums[lane] = before;
  }
  __syncthreads();
  all = warp_sums[threads / 32 - 1];
  return sum - value + (warp == 0 ? 0u : warp_sums[warp - 1]);
}

/// Block e places the slots of expert e.
__global__ void __launch_bounds__(threads)
    sort_kernel(const int32_t* ids, const float* weights, uint32_t entries, uint32_t experts_per_token,
                HalfExpertScratch scratch) {
  const uint32_t expert = blockIdx.x;
  const uint32_t each = (entries + threads - 1) / threads;
  const uint32_t begin = min(threadIdx.x * each, entries), end = min(begin + each, entries);
  uint32_t smaller = 0, equal = 0;
  for (uint32_t i = begin; i < end; ++i) {
    const uint32_t id = static_cast<uint32_t>(ids[i]);
    smaller += id < expert ? 1u : 0u;
    equal += id == expert ? 1u : 0u;
  }
  uint32_t first, count;
  prefix_of_block(smaller, first);
  uint32_t place = first + prefix_of_block(equal, count);
  if (threadIdx.x == 0) {
    scratch.expert_first[expert] = first;
    scratch.expert_count[expert] = count;
  }
  if (equal == 0) return;
  for (uint32_t i = begin; i < end; ++i) {
    if (static_cast<uint32_t>(ids[i]) != expert) continue;
    const uint32_t token = i / experts_per_token, k = i % experts_per_token;
    scratch.place_weight[place] = weights[i];
    scratch.slot_place[token * (experts_per_token + 1) + k] = place;
    ++place;
  }
}

__device__ uint32_t tiles_of(uint32_t count, uint32_t tile_tokens) {
  return (count + tile_tokens - 1) / tile_tokens;
}

/// One block: thread e cuts the tiles of expert e; the threads together place the shared expert's slots.
__global__ void __launch_bounds__(threads)
    tiles_kernel(uint32_t tokens, uint32_t experts, uint32_t experts_per_token, uint32_t tile_tokens,
                 HalfExpertScratch scratch) {
  const bool has_expert = threadIdx.x < experts;
  const uint32_t count = has_expert ? scratch.expert_count[threadIdx.x] : 0;
  const uint32_t start = has_expert ? scratch.expert_first[threadIdx.x] : 0;
  uint32_t all;
  const uint32_t first_tile = prefix_of_block(tiles_of(count, tile_tokens), all);
  for (uint32_t done = 0, t = first_tile; done < count; done += tile_tokens, ++t) {
    scratch.routed_tiles[t] = {threadIdx.x, start + done, min(count - done, tile_tokens)};
  }
  const uint32_t shared_tiles = tiles_of(tokens, tile_tokens), shared_first = tokens * experts_per_token;
  for (uint32_t t = threadIdx.x; t < shared_tiles; t += threads) {
    const uint32_t done = t * tile_tokens;
    scratch.shared_tiles[t] = {0, shared_first + done, min(tokens - done, tile_tokens)};
  }
  for (uint32_t token = threadIdx.x; token < tokens; token += threads) {
    const uint32_t place = shared_first + token;
    scratch.place_weight[place] = 1.0f;
    scratch.slot_place[token * (experts_per_token + 1) + experts_per_token] = place;
  }
  if (threadIdx.x < launches) scratch.next[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    scratch.tile_counts[0] = all;
    scratch.tile_counts[1] = shared_tiles;
  }
}

/// A thread makes positions 16 s + 8 h .. 16 s + 8 h + 7 of one block of 128 columns, at all places of a
/// token.
__global__ void __launch_bounds__(gather_threads)
    gather_kernel(const __half* x, uint32_t stride, uint32_t cols, uint32_t slots,
                  HalfExpertScratch scratch) {
  const uint32_t at = blockIdx.y * gather_threads + threadIdx.x;
  if (at >= scratch.x_stride / 8) return;
  const uint32_t h = at % 2, s = at / 2 % 8, first = at / 16 * expert_step_columns;
  const __half* const row = x + size_t{blockIdx.x} * stride;
  uint32_t pairs[4];
#pragma unroll
  for (uint32_t c = 0; c < 4; ++c) {
    const uint32_t column = first + 32 * c + 4 * s;
    uint2 v = make_uint2(0, 0);
    if (column < cols) v = __ldg(reinterpret_cast<const uint2*>(row + column));
    pairs[c] = __byte_perm(v.x, v.y, h == 0 ? 0x5410 : 0x7632);
  }
  const uint32_t* const places = scratch.slot_place + size_t{blockIdx.x} * slots;
#pragma unroll 8
  for (uint32_t k = 0; k < slots; ++k) {
    __half* const to = scratch.x + size_t{places[k]} * scratch.x_stride + at * 8;
    *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

}  // namespace

cudaError_t half_expert_groups(const HalfExperts& args, const HalfExpertScratch& scratch,
                               uint32_t tile_tokens, cudaStream_t stream) {
  const uint32_t entries = args.tokens * args.experts_per_token;
  sort_kernel<<<args.experts, threads, 0, stream>>>(args.ids, args.weights, entries, args.experts_per_token,
                                                    scratch);
  tiles_kernel<<<1, threads, 0, stream>>>(args.tokens, args.experts, args.experts_per_token, tile_tokens,
                                          scratch);
  const dim3 grid(args.tokens, (scratch.x_stride / 8 + gather_threads - 1) / gather_threads);
  gather_kernel<<<grid, gather_threads, 0, stream>>>(args.x.high, args.x.stride, args.gate.cols,
                                                     args.experts_per_token + 1, scratch);
  return cudaPeekAtLastError();
}

}  // namespace ds4::cuda
