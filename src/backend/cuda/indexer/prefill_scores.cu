// What: scores of index rows for the tokens of a slice, the weighted sum over heads of max(0, query . key).
// Layout: block = (256 keys, 64 tokens), two warpgroups. A thread keeps its warp's part of 128 keys in
// registers as two operands of 64 keys; the queries of one token after another (64 heads, 16 KB) pass through
// shared memory in the 128-byte swizzle. While the products of one operand run, the other's are weighted and
// added. Preconditions: queries from prepare_index_queries(); BF16 holds both factors exactly. Bytes and
// FLOPs: 16,384 FLOP for a key, a token and 64 heads; 64 B of queries from L2 for 1 MFLOP. Why this shape:
// keys are decoded once for 64 tokens and stored nowhere; an operand in registers leaves shared memory 64 of
// 128 B a clock to read; sums over heads stay within four lanes. A score depends on its token and key alone:
// heads in one order, F32.
#include "backend/cuda/device/warpgroup.hpp"
#include "backend/cuda/indexer/index_key.cuh"
#include "backend/cuda/indexer/prefill_indexer.hpp"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace ds4::cuda {
namespace {

constexpr int threads = 256;
constexpr uint32_t keys_per_block = 256;
constexpr uint32_t tokens_per_block = 64;
constexpr int steps = 8;                     // of 16 columns
constexpr int tile_bytes = 64 * 128;         // 64 heads, 64 columns
constexpr int query_bytes = 2 * tile_bytes;  // 64 heads of a token

/// Of the operand of 64 keys the part of a lane: [step][register].
struct Keys {
  uint32_t a[steps][4];
};

/// `first` is the key of row 0 of the warp; keys from `end` on are read as the last before it.
__device__ inline void load_keys(const uint8_t* const* pages, uint32_t first, uint32_t end, Keys& keys) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t j = min(first + g + 8 * half, end - 1);
    KeyFragment key;
    load_key(pages[j / rows_per_page] + j % rows_per_page * index_row_bytes, static_cast<int>(c), key);
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      keys.a[s][half] = key.pair[2 * s];
      keys.a[s][half + 2] = key.pair[2 * s + 1];
    }
  }
}

/// Starts the copy of 64 heads of queries.
__device__ inline void start_queries(const uint16_t* query, uint8_t* to) {
#pragma unroll
  for (uint32_t i = 0; i < query_bytes / 16 / threads; ++i) {
    const uint32_t at = threadIdx.x + threads * i, head = at / 16, chunk = at % 16;
    copy_16_async_if(to + chunk / 8 * tile_bytes + head * 128 + ((chunk ^ head) % 8) * 16, query + at * 8,
                     true);
  }
}

/// products[64 keys][64 heads]; thread and registers as in ptx/wgmma.cuh. Complete after finish_products().
template <bool kWarpgroup>
__device__ __forceinline__ void start_products(float (&products)[32], const Keys& keys,
                                               const uint8_t* queries) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kWarpgroup) {
    wgmma_begin();
    const uint64_t tiles[2] = {wgmma_tile(queries), wgmma_tile(queries + tile_bytes)};
#pragma unroll
    for (int s = 0; s < steps; ++s) wgmma_bf16(products, keys.a[s], tiles[s / 4] + 2 * (s % 4), s > 0);
    wgmma_commit();
  }
#endif
  if constexpr (!kWarpgroup) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t n = 0; n < 8; ++n) {
      const uint32_t head = 8 * n + lane % 8;
      float c[4] = {};
#pragma unroll
      for (int s = 0; s < steps; s += 2) {
        const uint32_t chunk = 2 * s + lane / 8;
        uint32_t b[4];
        load_matrices(b, queries + chunk / 8 * tile_bytes + head * 128 + ((chunk ^ head) % 8) * 16);
        mma_bf16(c, keys.a[s], b[0], b[1]);
        mma_bf16(c, keys.a[s + 1], b[2], b[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) products[4 * n + i] = c[i];
    }
  }
}

template <bool kWarpgroup>
__device__ __forceinline__ void finish_products(float (&products)[32]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kWarpgroup) {
    wgmma_wait<0>();
    wgmma_pin(products);
  }
#endif
}

/// Adds 64 heads to the sums of the lane's keys g and g + 8.
__device__ __forceinline__ void add_heads(const float (&products)[32], const float* weights,
                                          float (&sum)[2]) {
  const uint32_t c = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 w = *reinterpret_cast<const float2*>(weights + 8 * n + 2 * c);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] = fmaf(w.x, fmaxf(products[4 * n + 2 * half], 0.0f), sum[half]);
      sum[half] = fmaf(w.y, fmaxf(products[4 * n + 2 * half + 1], 0.0f), sum[half]);
    }
  }
}

/// After the last 64 heads of a token: adds the four lanes of a key, writes the 16 scores of the warp, and
/// starts sums anew; `first` is the key of its row 0. Without branches, as products may be running.
__device__ __forceinline__ void write_scores(float (&sum)[2], bool last, float* scores, uint32_t first,
                                             uint32_t end) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const bool odd = c % 2 != 0;
  float score = (odd ? sum[1] : sum[0]) + __shfl_xor_sync(0xffffffffu, odd ? sum[0] : sum[1], 1);
  score += __shfl_xor_sync(0xffffffffu, score, 2);
  const uint32_t key = first + g + 8 * c;
  if (last && c < 2 && key < end) scores[key] = score;
  sum[0] = last ? 0.0f : sum[0];
  sum[1] = last ? 0.0f : sum[1];
}

struct Range {
  uint32_t begin, end;
};

/// Tokens of the slice from `first` on that see the block's first key and have to choose.
__device__ inline Range tokens_of_block(const PrefillIndexer& a, const IndexSlice& slice, uint32_t first,
                                        uint32_t first_key) {
  const uint32_t rows = max(first_key, a.top_k);  // they see more than that
  const uint64_t needed = 4 * (uint64_t{rows} + 1) - 1, position = a.position + slice.first;
  const uint32_t end = min(first + tokens_per_block, slice.tokens);
  if (needed <= position + first) return {first, end};
  return {needed - position < end ? static_cast<uint32_t>(needed - position) : end, end};
}

/// The queries of a block's items (64 heads of a token each) on their way through the stages of shared
/// memory. With warpgroup products warps wait for each other only where a stage is filled anew, so that one
/// group's products fill the gaps of the other; else all wait at every item.
template <bool kWarpgroup>
struct Pipeline {
  static constexpr uint32_t stages = kWarpgroup ? 6 : 4;
  static constexpr uint32_t ahead = kWarpgroup ? 3 : stages - 1;  // items under way before the current one

  uint64_t* full;  // [stages], then as many `empty`; both for warpgroup products only
  const uint16_t* source;
  uint8_t* tiles;  // [stages]
  uint32_t items;

  __device__ __forceinline__ uint64_t* empty() const { return full + stages; }
  __device__ __forceinline__ uint8_t* queries(uint32_t item) const {
    return tiles + item % stages * query_bytes;
  }

  __device__ __forceinline__ void copy(uint32_t item) const {
    if (item < items) {
      if constexpr (kWarpgroup) {
        if (item >= stages) barrier_wait(&empty()[item % stages], item / stages % 2 ^ 1);
      }
      start_queries(source + size_t{item} * 64 * 128, queries(item));
      if constexpr (kWarpgroup) barrier_arrive_after_copies(&full[item % stages]);
    }
    if constexpr (!kWarpgroup) commit_copies();
  }

  __device__ __forceinline__ void start() const {
    if constexpr (kWarpgroup) {
      if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < stages; ++i) {
          barrier_init(&full[i], threads);
          barrier_init(&empty()[i], threads / 32);
        }
        barrier_init_fence();
      }
      __syncthreads();
    }
    for (uint32_t i = 0; i < ahead; ++i) copy(i);
  }

  __device__ __forceinline__ const uint8_t* wait_for(uint32_t item) const {
    if constexpr (kWarpgroup) {
      copy(item + ahead);
      barrier_wait(&full[item % stages], item / stages % 2);
      fence_async_shared();  // the copies were ordinary stores of other threads
    } else {
      wait_for_copy_groups<ahead - 1>();
      __syncthreads();  // the queries are there, and nobody reads those of the item before
      copy(item + ahead);
    }
    return queries(item);
  }

  /// The warp has no products with the item's queries left.
  __device__ __forceinline__ void release(uint32_t item) const {
    if constexpr (kWarpgroup) {
      if (threadIdx.x % 32 == 0) barrier_arrive(&empty()[item % stages]);
    }
  }
};

template <bool kWarpgroup>
__global__ void __launch_bounds__(threads, 1) score_kernel(PrefillIndexer a, IndexSlice slice) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool is_compiled = true;
#else
  constexpr bool is_compiled = !kWarpgroup;
#endif
  if constexpr (is_compiled) {
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t barriers[2 * Pipeline<true>::stages];
    const uint32_t misplaced = shared_address(dynamic) % 1024;
    uint8_t* queries = dynamic + (misplaced == 0 ? 0 : 1024 - misplaced);
    float* weights = reinterpret_cast<float*>(queries + Pipeline<kWarpgroup>::stages * query_bytes);

    const uint32_t end_key = visible_rows(a.position + slice.first + slice.tokens - 1, 4);
    const uint32_t block_key = blockIdx.x * keys_per_block;
    const Range range = tokens_of_block(a, slice, blockIdx.y * tokens_per_block, block_key);
    if (range.begin >= range.end) return;
    const uint32_t items = (range.end - range.begin) * slice.groups;  // 64 heads of a token each
    const size_t first_item = size_t{range.begin} * slice.groups;
    const Pipeline<kWarpgroup> pipeline{barriers, slice.queries + first_item * 64 * 128, queries, items};
    pipeline.start();
    for (uint32_t i = threadIdx.x; i < items * 64; i += threads)
      weights[i] = slice.weights[first_item * 64 + i];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t low_key = block_key + warp / 4 * 128 + warp % 4 * 16, high_key = low_key + 64;
    Keys low, high;
    load_keys(a.pages, low_key, end_key, low);
    load_keys(a.pages, high_key, end_key, high);
    __syncthreads();  // the weights are there

    float low_products[32], high_products[32], low_sum[2] = {}, high_sum[2] = {};
    float* scores = slice.scores + range.begin * slice.score_stride;
    uint32_t group = 0;
    start_products<kWarpgroup>(low_products, low, pipeline.wait_for(0));
    finish_products<kWarpgroup>(low_products);
    for (uint32_t item = 0;; ++item) {
      const bool last = ++group == slice.groups;
      start_products<kWarpgroup>(high_products, high, pipeline.queries(item));
      add_heads(low_products, weights + item * 64, low_sum);
      write_scores(low_sum, last, scores, low_key, end_key);
      finish_products<kWarpgroup>(high_products);
      if (item + 1 == items) break;
      pipeline.release(item);
      start_products<kWarpgroup>(low_products, low, pipeline.wait_for(item + 1));
      add_heads(high_products, weights + item * 64, high_sum);
      write_scores(high_sum, last, scores, high_key, end_key);
      finish_products<kWarpgroup>(low_products);
      scores += last ? slice.score_stride : 0;
      group = last ? 0 : group;
    }
    add_heads(high_products, weights + (items - 1) * 64, high_sum);
    write_scores(high_sum, true, scores, high_key, end_key);
  }
}

template <bool kWarpgroup>
cudaError_t launch(const PrefillIndexer& arguments, const IndexSlice& slice, cudaStream_t stream) {
  const uint32_t compressed = visible_rows(arguments.position + slice.first + slice.tokens - 1, 4);
  const dim3 grid((compressed + keys_per_block - 1) / keys_per_block,
                  (slice.tokens + tokens_per_block - 1) / tokens_per_block);
  const size_t bytes = 1024 + Pipeline<kWarpgroup>::stages * query_bytes +
                       tokens_per_block * slice.groups * 64 * sizeof(float);
  const cudaError_t error = cudaFuncSetAttribute(
      score_kernel<kWarpgroup>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  score_kernel<kWarpgroup><<<grid, threads, bytes, stream>>>(arguments, slice);
  return cudaGetLastError();
}

}  // namespace

cudaError_t score_index_slice(const PrefillIndexer& arguments, const IndexSlice& slice, PrefillKernel kernel,
                              cudaStream_t stream) {
  if (kernel == PrefillKernel::best && has_warpgroup_products())
    return launch<true>(arguments, slice, stream);
  return launch<false>(arguments, slice, stream);
}

}  // namespace ds4::cuda
