// What: scores of index rows for the tokens of a slice, the weighted sum over heads of max(0, query . key).
//
// Layout: block = (256 keys, 64 tokens), two warpgroups. A thread keeps its warp's part of 128 keys in
// registers as two operands of 64 keys; queries pass through shared memory in the 128-byte swizzle, 64 heads
// of a token (16 KB) or two such units at a time. While the products of one operand run, the other's are
// weighted and added.
//
// Preconditions: queries from prepare_index_queries(); BF16 holds both factors exactly.
//
// Bytes and FLOPs: 16,384 FLOP for a key, a token and 64 heads; 64 B of queries from L2 for 1 MFLOP.
//
// Why this shape: keys are decoded once for 64 tokens and stored nowhere; sums over heads stay within four
// lanes. Measured on an H200 with one unit at a time: 507 TFLOP/s with keys in registers; two at a time: 568,
// and 510 with keys in shared memory. A score depends on its token and key alone: heads in one order, F32.
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
constexpr int steps = 8;              // of 16 columns
constexpr int half_bytes = 64 * 128;  // 64 heads of a token, 64 columns

/// 64 heads of a token are a unit; so many go through the tensor cores at a time. Wide products suffer less
/// from keys in registers.
template <bool kWarpgroup>
constexpr uint32_t units_at_once = kWarpgroup ? 2 : 1;

constexpr uint32_t query_stages = 4;
/// Stages whose copies are under way before their turn.
template <bool kWarpgroup>
constexpr uint32_t items_ahead = kWarpgroup ? query_stages - 2 : query_stages - 1;

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

/// Byte of chunk k (16 bytes) of row r among two tiles of 64 columns, `rows` rows each.
template <uint32_t rows>
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t chunk) {
  return chunk / 8 * (rows * 128) + row * 128 + ((chunk ^ row) % 8) * 16;
}

/// Starts the copy of the queries of `units`, at most units_at_once.
template <bool kWarpgroup>
__device__ inline void start_queries(const uint16_t* query, uint32_t units, uint8_t* to) {
  constexpr uint32_t rows = units_at_once<kWarpgroup> * 64;
#pragma unroll
  for (uint32_t i = 0; i < rows * 16 / threads; ++i) {
    const uint32_t at = threadIdx.x + threads * i, row = at / 16;
    const bool exists = row < units * 64;
    copy_16_async_if(to + swizzled<rows>(row, at % 16), query + (exists ? at * 8 : 0), exists);
  }
}

/// products[64 keys][heads of the units]; thread and registers as in ptx/wgmma.cuh. Complete after
/// finish_products().
template <bool kWarpgroup>
__device__ __forceinline__ void start_products(float (&products)[32 * units_at_once<kWarpgroup>],
                                               const Keys& keys, const uint8_t* queries) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kWarpgroup) {
    wgmma_begin();
    const uint64_t tiles[2] = {wgmma_tile(queries), wgmma_tile(queries + units_at_once<true> * half_bytes)};
#pragma unroll
    for (int s = 0; s < steps; ++s) wgmma_bf16(products, keys.a[s], tiles[s / 4] + 2 * (s % 4), s > 0);
    wgmma_commit();
  }
#endif
  if constexpr (!kWarpgroup) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t n = 0; n < 8; ++n) {
      float c[4] = {};
#pragma unroll
      for (int s = 0; s < steps; s += 2) {
        uint32_t b[4];
        load_matrices(b, queries + swizzled<64>(8 * n + lane % 8, 2 * s + lane / 8));
        mma_bf16(c, keys.a[s], b[0], b[1]);
        mma_bf16(c, keys.a[s + 1], b[2], b[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) products[4 * n + i] = c[i];
    }
  }
}

template <bool kWarpgroup>
__device__ __forceinline__ void finish_products(float (&products)[32 * units_at_once<kWarpgroup>]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kWarpgroup) {
    wgmma_wait<0>();
    wgmma_pin(products);
  }
#endif
}

/// Sums over the heads of a token with the lane's keys g and g + 8 of one operand, token after token. Nothing
/// here branches, as products may be running.
struct Sums {
  float* scores;        // of the token
  uint32_t first, end;  // key of row 0 of the warp, and the first that does not exist
  uint32_t group = 0;
  float sum[2] = {0, 0};

  /// Adds a unit, unless it lies past the block's last.
  __device__ __forceinline__ void add(const float* products, const float* weights, uint32_t groups,
                                      size_t stride, bool exists) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 w = *reinterpret_cast<const float2*>(weights + 8 * n + 2 * c);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] = fmaf(w.x, fmaxf(products[4 * n + 2 * half], 0.0f), sum[half]);
        sum[half] = fmaf(w.y, fmaxf(products[4 * n + 2 * half + 1], 0.0f), sum[half]);
      }
    }
    // After the last heads of the token the four lanes of a key are added, and the warp writes 16 scores.
    const bool last = ++group == groups, odd = c % 2 != 0;
    float score = (odd ? sum[1] : sum[0]) + __shfl_xor_sync(0xffffffffu, odd ? sum[0] : sum[1], 1);
    score += __shfl_xor_sync(0xffffffffu, score, 2);
    const uint32_t key = first + g + 8 * c;
    if (last && exists && c < 2 && key < end) scores[key] = score;
    sum[0] = last ? 0.0f : sum[0];
    sum[1] = last ? 0.0f : sum[1];
    group = last ? 0 : group;
    scores += last ? stride : 0;
  }
};

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

/// The queries of a block's items (units_at_once units each) on their way through the stages of shared
/// memory. With warpgroup products warps wait for each other only where a stage is filled anew, so that one
/// group's products fill the gaps of the other; else all wait at every item.
template <bool kWarpgroup>
struct Pipeline {
  static constexpr uint32_t at_once = units_at_once<kWarpgroup>;
  static constexpr uint32_t stages = query_stages;
  static constexpr uint32_t stage_bytes = 2 * half_bytes * at_once;

  uint64_t* full;  // [stages], then as many `empty`; both for warpgroup products only
  const uint16_t* source;
  uint8_t* tiles;  // [stages]
  uint32_t units;

  __device__ __forceinline__ uint64_t* empty() const { return full + stages; }
  __device__ __forceinline__ uint32_t items() const { return (units + at_once - 1) / at_once; }
  __device__ __forceinline__ uint8_t* queries(uint32_t item) const {
    return tiles + item % stages * stage_bytes;
  }

  __device__ __forceinline__ void copy(uint32_t item) const {
    if (item < items()) {
      if constexpr (kWarpgroup) {
        if (item >= stages) barrier_wait(&empty()[item % stages], item / stages % 2 ^ 1);
      }
      const uint32_t unit = item * at_once;
      start_queries<kWarpgroup>(source + size_t{unit} * 64 * 128, min(units - unit, at_once), queries(item));
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
    for (uint32_t i = 0; i < items_ahead<kWarpgroup>; ++i) copy(i);
  }

  __device__ __forceinline__ const uint8_t* wait_for(uint32_t item) const {
    if constexpr (kWarpgroup) {
      copy(item + items_ahead<kWarpgroup>);
      barrier_wait(&full[item % stages], item / stages % 2);
      fence_async_shared();  // the copies were ordinary stores of other threads
    } else {
      wait_for_copy_groups<items_ahead<kWarpgroup> - 1>();
      __syncthreads();  // the queries are there, and nobody reads those of the item before
      copy(item + items_ahead<kWarpgroup>);
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
    __shared__ uint64_t barriers[2 * Pipeline<kWarpgroup>::stages];
    const uint32_t misplaced = shared_address(dynamic) % 1024;
    uint8_t* queries = dynamic + (misplaced == 0 ? 0 : 1024 - misplaced);
    float* weights =
        reinterpret_cast<float*>(queries + Pipeline<kWarpgroup>::stages * Pipeline<kWarpgroup>::stage_bytes);

    const uint32_t end_key = visible_rows(a.position + slice.first + slice.tokens - 1, 4);
    const uint32_t block_key = blockIdx.x * keys_per_block;
    const Range range = tokens_of_block(a, slice, blockIdx.y * tokens_per_block, block_key);
    if (range.begin >= range.end) return;
    const uint32_t units = (range.end - range.begin) * slice.groups;
    const size_t first_unit = size_t{range.begin} * slice.groups;
    const Pipeline<kWarpgroup> pipeline{barriers, slice.queries + first_unit * 64 * 128, queries, units};
    pipeline.start();
    for (uint32_t i = threadIdx.x; i < units * 64; i += threads)
      weights[i] = slice.weights[first_unit * 64 + i];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t low_key = block_key + warp / 4 * 128 + warp % 4 * 16, high_key = low_key + 64;
    Keys low, high;
    load_keys(a.pages, low_key, end_key, low);
    load_keys(a.pages, high_key, end_key, high);
    __syncthreads();  // the weights are there

    constexpr uint32_t at_once = units_at_once<kWarpgroup>;
    float low_products[32 * at_once], high_products[32 * at_once];
    float* scores = slice.scores + range.begin * slice.score_stride;
    Sums low_sums{scores, low_key, end_key}, high_sums{scores, high_key, end_key};
    const auto add = [&](const float* products, uint32_t item, Sums& sums) {
#pragma unroll
      for (uint32_t u = 0; u < at_once; ++u) {
        const uint32_t unit = item * at_once + u;
        sums.add(products + 32 * u, weights + unit * 64, slice.groups, slice.score_stride, unit < units);
      }
    };
    const uint32_t items = pipeline.items();
    start_products<kWarpgroup>(low_products, low, pipeline.wait_for(0));
    finish_products<kWarpgroup>(low_products);
    for (uint32_t item = 0;; ++item) {
      start_products<kWarpgroup>(high_products, high, pipeline.queries(item));
      add(low_products, item, low_sums);
      finish_products<kWarpgroup>(high_products);
      if (item + 1 == items) break;
      pipeline.release(item);
      start_products<kWarpgroup>(low_products, low, pipeline.wait_for(item + 1));
      add(high_products, item, high_sums);
      finish_products<kWarpgroup>(low_products);
    }
    add(high_products, items - 1, high_sums);
  }
}

template <bool kWarpgroup>
cudaError_t launch(const PrefillIndexer& arguments, const IndexSlice& slice, cudaStream_t stream) {
  const uint32_t compressed = visible_rows(arguments.position + slice.first + slice.tokens - 1, 4);
  const dim3 grid((compressed + keys_per_block - 1) / keys_per_block,
                  (slice.tokens + tokens_per_block - 1) / tokens_per_block);
  const size_t bytes = 1024 + Pipeline<kWarpgroup>::stages * Pipeline<kWarpgroup>::stage_bytes +
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
