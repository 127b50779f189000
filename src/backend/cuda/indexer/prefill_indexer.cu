// What: the indexer of a prefill pass, slice by slice: queries prepared, rows scored, the best chosen.
//
// Layout: this file has the slices, the preparation (block = token, a warp for a head) and the choice (block
// = token).
//
// Preconditions: as PrefillIndexer says.
//
// Bytes and FLOPs: 48 KB a token for 64 heads; the choice reads 4 B a visible row once where its keys fit
// shared memory (about 53,000 rows on sm_90), four times beyond.
//
// Why this shape: slices bound the scores to 128 MB whatever the context. The choice counts scores in bins of
// equal width, where atomic additions seldom meet, and orders the few keys in the bin of the last chosen one;
// only where that fails (equal scores, infinite ones) it takes the radix search of radix_select.cuh. Both are
// exact.
#include <algorithm>

#include "backend/cuda/attention/heads.cuh"
#include "backend/cuda/indexer/prefill_indexer.hpp"
#include "backend/cuda/indexer/radix_select.cuh"

namespace ds4::cuda {
namespace {

constexpr size_t score_budget_bytes = size_t{128} << 20;
constexpr uint32_t slice_multiple = 64;  // tokens
constexpr int prepare_warps = 8;
constexpr uint32_t max_candidates = 1024;

uint32_t head_groups(uint32_t heads) {
  return (heads + 63) / 64;
}

size_t score_stride(uint32_t compressed) {
  return (size_t{compressed} + 127) / 128 * 128;
}

uint32_t slice_tokens(uint32_t tokens, uint32_t compressed) {
  const size_t fitting = score_budget_bytes / (sizeof(float) * (score_stride(compressed) + 128));
  const size_t slice = fitting < slice_multiple ? slice_multiple : fitting / slice_multiple * slice_multiple;
  return slice < tokens ? static_cast<uint32_t>(slice) : tokens;
}

/// The first token of the pass that sees more than `rows`, not above tokens.
uint32_t first_that_sees_more(const PrefillIndexer& a, uint32_t rows) {
  const uint64_t position = 4 * (uint64_t{rows} + 1) - 1;
  if (position <= a.position) return 0;
  return position - a.position < a.tokens ? static_cast<uint32_t>(position - a.position) : a.tokens;
}

__global__ void __launch_bounds__(32 * prepare_warps) prepare_kernel(PrefillIndexer a, IndexSlice slice) {
  __shared__ float2 angles[rope_pair_count];
  __shared__ uint32_t packed[prepare_warps][64];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, heads = slice.groups * 64;
  const size_t token = slice.first + blockIdx.x;
  if (threadIdx.x < rope_pair_count) {
    angles[threadIdx.x] = rope_angle(a.position + token, a.frequencies, static_cast<int>(threadIdx.x));
  }
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(128 * a.heads)));
  for (uint32_t h = threadIdx.x; h < heads; h += 32 * prepare_warps) {
    slice.weights[blockIdx.x * heads + h] = h < a.heads ? a.head_weights[token * a.heads + h] * factor : 0.0f;
  }
  __syncthreads();
  for (uint32_t h = warp; h < heads; h += prepare_warps) {
    float v[4] = {};
    if (h < a.heads) {
      const float4 x = __ldg(reinterpret_cast<const float4*>(a.query + (token * a.heads + h) * 128) + lane);
      v[0] = x.x;
      v[1] = x.y;
      v[2] = x.z;
      v[3] = x.w;
      prepare_index_query(v, angles, static_cast<int>(lane));
    }
    // Elements j and j + 16 of a block of 32 become one word; they lie four lanes apart.
    const uint32_t block = lane / 8, in_block = lane % 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float upper = __shfl_down_sync(0xffffffffu, v[i], 4);
      if (in_block < 4) packed[warp][4 * (4 * in_block + i) + block] = pack_bf16(v[i], upper);
    }
    __syncwarp();
    const size_t row = size_t{blockIdx.x} * heads + h;
    reinterpret_cast<uint2*>(slice.queries + row * 128)[lane] =
        *reinterpret_cast<const uint2*>(&packed[warp][2 * lane]);
    __syncwarp();
  }
}

struct SharedKeys {
  const uint32_t* keys;
  __device__ void load(uint32_t first, uint32_t (&key)[4]) const {
    const uint4 v = *reinterpret_cast<const uint4*>(keys + first);
    key[0] = v.x;
    key[1] = v.y;
    key[2] = v.z;
    key[3] = v.w;
  }
};

struct SelectShared {
  RadixShared radix;
  uint32_t lowest, highest;  // keys
  uint32_t candidate_count;
  uint32_t candidates[max_candidates];
};

/// Bins of equal width between the lowest and the highest score; a larger key never has a lower bin.
struct EvenBins {
  float lowest, factor;

  __device__ uint32_t bin(uint32_t key) const {
    const float x = __fmul_rn(__fsub_rn(ordered_key_value(key), lowest), factor);
    return min(static_cast<uint32_t>(x), radix_bins - 1);
  }
};

/// The extremes of the keys, to shared.lowest and highest; the keys to `kept` unless it is null.
template <int kThreads>
__device__ inline void find_extremes(const ScoreKeys& scores, uint32_t count, uint4* kept,
                                     SelectShared& shared) {
  if (threadIdx.x == 0) {
    shared.lowest = 0xffffffffu;
    shared.highest = 0;
    shared.candidate_count = 0;
  }
  for (uint32_t i = threadIdx.x; i < radix_bins; i += kThreads) shared.radix.histogram[i] = 0;
  __syncthreads();
  uint32_t lowest = 0xffffffffu, highest = 0;
  for (uint32_t i = 4 * threadIdx.x; i < count; i += 4 * kThreads) {
    uint32_t key[4];
    scores.load(i, key);
    if (kept != nullptr) kept[i / 4] = make_uint4(key[0], key[1], key[2], key[3]);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      lowest = min(lowest, i + j < count ? key[j] : 0xffffffffu);
      highest = max(highest, i + j < count ? key[j] : 0u);
    }
  }
  lowest = __reduce_min_sync(0xffffffffu, lowest);
  highest = __reduce_max_sync(0xffffffffu, highest);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&shared.lowest, lowest);
    atomicMax(&shared.highest, highest);
  }
  __syncthreads();
}

/// The key of the last chosen row, to shared.radix.bin, and how many rows of that very key belong, to
/// shared.radix.left: the bin in which it lies, then the order of the few keys there. False where scores are
/// not finite or all equal, or too many share that bin.
template <int kThreads, class Keys>
__device__ inline bool find_last_key(const Keys& keys, uint32_t count, uint32_t top_k, SelectShared& shared) {
  const float lowest = ordered_key_value(shared.lowest), highest = ordered_key_value(shared.highest);
  const EvenBins even{lowest, __fdiv_rn(static_cast<float>(radix_bins), __fsub_rn(highest, lowest))};
  if (!(lowest > -INFINITY && highest < INFINITY && even.factor > 0.0f && even.factor < INFINITY))
    return false;
  for (uint32_t i = 4 * threadIdx.x; i < count; i += 4 * kThreads) {
    uint32_t key[4];
    keys.load(i, key);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      if (i + j < count) atomicAdd(&shared.radix.histogram[even.bin(key[j])], 1u);
    }
  }
  __syncthreads();
  find_bin<kThreads>(shared.radix, top_k);
  const uint32_t bin = shared.radix.bin, left = shared.radix.left, number = shared.radix.histogram[bin];
  if (number > max_candidates) return false;
  for (uint32_t i = 4 * threadIdx.x; i < count; i += 4 * kThreads) {
    uint32_t key[4];
    keys.load(i, key);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      if (i + j < count && even.bin(key[j]) == bin)
        shared.candidates[atomicAdd(&shared.candidate_count, 1u)] = key[j];
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < number; i += kThreads) {
    const uint32_t key = shared.candidates[i];
    uint32_t above = 0, equal = 0;
    for (uint32_t j = 0; j < number; ++j) {
      above += shared.candidates[j] > key ? 1u : 0u;
      equal += shared.candidates[j] == key ? 1u : 0u;
    }
    if (above < left && left <= above + equal) {  // threads of equal keys write the same
      shared.radix.bin = key;
      shared.radix.left = left - above;
    }
  }
  __syncthreads();
  return true;
}

template <int kThreads, class Keys>
__device__ inline void choose(const Keys& keys, uint32_t count, uint32_t top_k, SelectShared& shared,
                              uint32_t* selected) {
  if (find_last_key<kThreads>(keys, count, top_k, shared)) {
    compact<kThreads>(keys, count, shared.radix.bin, shared.radix.left, shared.radix, selected);
  } else {
    __syncthreads();
    radix_select<kThreads>(keys, count, top_k, shared.radix, selected);
  }
}

/// `max_kept`: keys for which there is room in dynamic shared memory.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    select_kernel(PrefillIndexer a, IndexSlice slice, uint32_t max_kept) {
  __shared__ SelectShared shared;
  extern __shared__ uint4 kept[];
  const size_t token = slice.first + blockIdx.x;
  const uint32_t visible = visible_rows(a.position + token, 4);
  const ScoreKeys scores{slice.scores + blockIdx.x * slice.score_stride};
  uint32_t* selected = a.selected + token * a.top_k;
  if (visible <= max_kept) {
    find_extremes<kThreads>(scores, visible, kept, shared);
    choose<kThreads>(SharedKeys{reinterpret_cast<const uint32_t*>(kept)}, visible, a.top_k, shared, selected);
  } else {
    find_extremes<kThreads>(scores, visible, nullptr, shared);
    choose<kThreads>(scores, visible, a.top_k, shared, selected);
  }
}

template <int kThreads>
cudaError_t launch_select(const PrefillIndexer& arguments, const IndexSlice& slice, uint32_t most,
                          cudaStream_t stream) {
  int device = 0, shared_bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const auto room = static_cast<uint32_t>((shared_bytes - static_cast<int>(sizeof(SelectShared))) / 16 * 4);
  const uint32_t max_kept = most <= room ? (most + 3) / 4 * 4 : 0;
  const auto bytes = static_cast<int>(max_kept * sizeof(uint32_t));
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(select_kernel<kThreads>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  select_kernel<kThreads>
      <<<slice.tokens, kThreads, static_cast<size_t>(bytes), stream>>>(arguments, slice, max_kept);
  return cudaGetLastError();
}

}  // namespace

size_t prefill_indexer_scratch_bytes(uint32_t tokens, uint32_t heads, uint32_t compressed) {
  const size_t slice = slice_tokens(tokens, compressed), groups = head_groups(heads);
  return slice *
         (groups * 64 * (128 * sizeof(uint16_t) + sizeof(float)) + score_stride(compressed) * sizeof(float));
}

cudaError_t prepare_index_queries(const PrefillIndexer& arguments, const IndexSlice& slice,
                                  cudaStream_t stream) {
  prepare_kernel<<<slice.tokens, 32 * prepare_warps, 0, stream>>>(arguments, slice);
  return cudaGetLastError();
}

cudaError_t select_slice_rows(const PrefillIndexer& arguments, const IndexSlice& slice, cudaStream_t stream) {
  const uint32_t most = visible_rows(arguments.position + slice.first + slice.tokens - 1, 4);
  return most <= 8192 ? launch_select<512>(arguments, slice, most, stream)
                      : launch_select<1024>(arguments, slice, most, stream);
}

cudaError_t prefill_index_rows(const PrefillIndexer& arguments, cudaStream_t stream, PrefillKernel kernel) {
  const uint32_t begin = first_that_sees_more(arguments, arguments.top_k);
  if (begin >= arguments.tokens) return cudaSuccess;
  const uint32_t compressed = visible_rows(arguments.position + arguments.tokens - 1, 4);
  const uint32_t at_once = slice_tokens(arguments.tokens, compressed);
  IndexSlice slice;
  slice.groups = head_groups(arguments.heads);
  slice.score_stride = score_stride(compressed);
  slice.queries = static_cast<uint16_t*>(arguments.scratch);
  slice.weights = reinterpret_cast<float*>(slice.queries + size_t{at_once} * slice.groups * 64 * 128);
  slice.scores = slice.weights + size_t{at_once} * slice.groups * 64;
  for (slice.first = begin; slice.first < arguments.tokens; slice.first += slice.tokens) {
    slice.tokens = arguments.tokens - slice.first < at_once ? arguments.tokens - slice.first : at_once;
    cudaError_t error = prepare_index_queries(arguments, slice, stream);
    if (error == cudaSuccess) error = score_index_slice(arguments, slice, kernel, stream);
    if (error == cudaSuccess) error = select_slice_rows(arguments, slice, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace ds4::cuda
