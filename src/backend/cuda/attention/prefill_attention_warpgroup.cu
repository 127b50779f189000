// What: attention of one token of a prefill pass, 64 heads at a time, over F16 rows that serve as keys and
// values (docs/model.md §5), with warpgroup products (sm_90a).
//
// Layout: a task is 64 heads of a token; as many blocks as processors take tasks in turn. Two warpgroups
// compute, a third gathers rows in blocks of 64 by their numbers into two buffers, also those of the next
// task. Tiles of 64 columns in the 128-byte swizzle. Group w scores rows 32 w .. 32 w + 31 of a block for all
// heads and keeps columns 256 w .. 256 w + 255 of the result (128 registers a thread).
//
// Preconditions: heads a multiple of 64; block boundaries depend on the token's own list alone.
//
// Bytes and FLOPs: 1 KB and 131,072 FLOP for a row and 64 heads; 128 KB of queries and results a token.
//
// Why this shape: rows come from L2, where 64 heads a byte are what balances copies (24 B a clock) and tensor
// cores (4096 FLOP a clock); the same bytes in shared memory are read as keys and, transposed, as values.
// Blocks that stay hide the queries and rows of the next task behind the results of this one.
#include <algorithm>

#include "backend/cuda/attention/prefill_rows.cuh"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace ds4::cuda {
namespace {

[[maybe_unused]] constexpr int block_rows = 64;
constexpr int block_heads = 64;
constexpr int columns = 512;
constexpr int tile_bytes = 64 * 128;                    // 64 rows of 64 columns
constexpr int block_bytes = columns / 64 * tile_bytes;  // 64 whole rows
constexpr int buffers = 2;
constexpr int consumers = 256;  // threads: two warpgroups
constexpr int producers = 128;
constexpr int shared_bytes = 1024 + block_bytes * (1 + buffers) + tile_bytes;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// Byte of chunk k (16 bytes) of row r among tiles of 64 rows.
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t chunk) {
  return chunk / 8 * tile_bytes + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
}

/// Parts of the block in dynamic shared memory.
struct Tiles {
  uint8_t* query;    // [8][64 heads][64]
  uint8_t* rows;     // [buffers][8][64 rows][64]
  uint8_t* weights;  // [64 heads][64 rows]
};

struct Control {
  uint64_t full[buffers];
  uint64_t empty[buffers];
  uint64_t query_full;
  uint64_t query_empty;
  float2 angles[2][rope_pair_count];  // of even and odd tasks of the block
  float scales[block_heads];          // from scores to powers of two
  float maxima[2][block_heads];
  float sums[2][block_heads];
};

/// 64 heads of a token; blocks take tasks blockIdx.x, blockIdx.x + gridDim.x, ...
struct Task {
  uint32_t token;
  uint32_t head;
  size_t at;  // of its queries and results

  __device__ Task(const PrefillAttention& a, uint32_t number) {
    const uint32_t groups = a.heads / block_heads;
    token = number / groups;
    head = number % groups * block_heads;
    at = (size_t{token} * a.heads + head) * columns;
  }
};

__device__ __forceinline__ uint32_t task_count(const PrefillAttention& a) {
  return a.tokens * (a.heads / block_heads);
}

/// Copies `count` rows of 1 KB to tiles of 64, the rest becomes zeros; row(i) is where this thread's i-th row
/// lies, number thread / 64 + 2 i.
template <class Row>
__device__ __forceinline__ void copy_rows(uint8_t* to, uint32_t count, Row&& row) {
  const uint32_t thread = threadIdx.x % producers, chunk = thread % 64, first = thread / 64;
#pragma unroll 8
  for (uint32_t i = 0; i < block_rows / 2; ++i) {
    copy_16_async_if(to + swizzled(first + 2 * i, chunk), row(i) + chunk * 8, first + 2 * i < count);
  }
}

/// Copies the queries of the tasks and the rows of their lists, block after block; rows past the end of a
/// list become zeros.
__device__ __forceinline__ void copy_tasks(const PrefillAttention& a, const Tiles& tiles, Control& control) {
  const uint32_t thread = threadIdx.x % producers, first = thread / 64, tasks = task_count(a);
  uint32_t block = 0, turn = 0;
  for (uint32_t number = blockIdx.x; number < tasks; number += gridDim.x, ++turn) {
    const Task task(a, number);
    const PrefillRows list(a, task.token);
    for (uint32_t begin = 0; begin < list.count; begin += block_rows, ++block) {
      const uint32_t buffer = block % buffers, own = begin + first + 2 * (thread % 32);
      const uint32_t numbers = own < list.count ? list.row(own) : 0;
      barrier_wait(&control.empty[buffer], block / buffers % 2 ^ 1);
      copy_rows(tiles.rows + buffer * block_bytes, list.count - begin,
                [&](uint32_t i) { return a.rows + size_t{__shfl_sync(0xffffffffu, numbers, i)} * columns; });
      barrier_arrive_after_copies(&control.full[buffer]);
      if (begin > 0) continue;
      // Later than the first rows, as their place is free earlier.
      const __half* query = a.query + task.at;
      barrier_wait(&control.query_empty, turn % 2 ^ 1);
      copy_rows(tiles.query, block_heads, [&](uint32_t i) { return query + (first + 2 * i) * columns; });
      barrier_arrive_after_copies(&control.query_full);
      if (number + gridDim.x >= tasks) continue;
      // The next queries on their way to L2.
      const __half* next = a.query + Task(a, number + gridDim.x).at;
#pragma unroll
      for (uint32_t i = 0; i < block_heads * columns / 64; i += producers)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(next + (i + thread) * 64));
    }
  }
}

/// Rotates the tails of the queries in shared memory, and finds the scales of their scores. Four threads a
/// head.
__device__ __forceinline__ void prepare_queries(uint8_t* query, const float2* angles, float* scales) {
  const uint32_t head = threadIdx.x / 4, part = threadIdx.x % 4;
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < columns / 32; ++i) {
    const uint32_t chunk = 4 * (i ^ head % 2) + part;  // eight lanes fall into distinct banks
    sum = sum_of_squares(*reinterpret_cast<const uint4*>(query + swizzled(head, chunk)), sum);
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if (part == 0) scales[head] = inverse_root_mean_square(sum) * log2_score_scale;
  __syncwarp();  // what follows overwrites what other lanes have read
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t chunk = 4 * (i ^ head % 2) + part;  // of the tail
    uint4* at = reinterpret_cast<uint4*>(query + swizzled(head, 56 + chunk));
    const uint4 v = *at;
    const uint32_t in[4] = {v.x, v.y, v.z, v.w};
    uint32_t out[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      float2 x = unpack_f16(in[j]);
      rotate(x.x, x.y, angles[4 * chunk + j]);
      out[j] = pack_f16(x.x, x.y);
    }
    *at = make_uint4(out[0], out[1], out[2], out[3]);
  }
}

/// Starts scores of rows 32 group .. + 31 of a block, as s[64 heads][32].
__device__ __forceinline__ void start_scores(float (&s)[16], const uint8_t* query, const uint8_t* rows,
                                             uint32_t group) {
  wgmma_begin();
#pragma unroll
  for (int tile = 0; tile < columns / 64; ++tile) {
    const uint64_t q = wgmma_tile(query + tile * tile_bytes);
    const uint64_t k = wgmma_tile(rows + tile * tile_bytes + group * 32 * 128);
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_f16(s, q + 2 * step, k + 2 * step, tile + step > 0);
  }
  wgmma_commit();
}

/// Starts o[64 heads][256 columns of the group] += weights . rows.
__device__ __forceinline__ void start_values(float (&o)[128], const uint8_t* weights, const uint8_t* rows,
                                             uint32_t group) {
  wgmma_begin();
  const uint64_t p = wgmma_tile(weights);
  const uint64_t v = wgmma_row_tiles(rows + group * 4 * tile_bytes, tile_bytes);
#pragma unroll
  for (int step = 0; step < block_rows / 16; ++step) {
    wgmma_f16_rows(o, p + 2 * step, v + step * (16 * 128 / 16));
  }
  wgmma_commit();
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// What a thread keeps of its two heads: running maximum in powers of two, sum over its own columns.
struct Running {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

/// Scores of a block to weights in shared memory, both groups together; returns the factors for what was
/// summed so far. `left`: rows of the list from the group's first on.
__device__ __forceinline__ float2 weigh(float (&s)[16], int left, float2 scale, uint32_t group,
                                        Control& control, uint8_t* weights, Running& running) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const uint32_t head = threadIdx.x % 128 / 32 * 16 + g;
  if (left < 32) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (static_cast<int>(i / 4 * 8 + 2 * c + i % 2) >= left) s[i] = -INFINITY;
    }
  }
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = 0; i < 16; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
    top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
    if (c == 0) control.maxima[group][head + 8 * half] = top[half];
  }
  sync_threads(1, consumers);  // also: the other group has read the weights of the block before
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float other = control.maxima[group ^ 1][head + 8 * half];
    const float scaled = fmaxf(top[half], other) * (half == 0 ? scale.x : scale.y);
    const float maximum = fmaxf(running.maximum[half], scaled);
    factor[half] = exp2_fast(running.maximum[half] - maximum);
    running.maximum[half] = maximum;
    running.sum[half] *= factor[half];
  }
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    const int half = i / 2 % 2;
    const float factor_of_score = half == 0 ? scale.x : scale.y;
    const float x = exp2_fast(fmaf(s[i], factor_of_score, -running.maximum[half]));
    const float y = exp2_fast(fmaf(s[i + 1], factor_of_score, -running.maximum[half]));
    running.sum[half] += x + y;
    const __half2 pair = __floats2half2_rn(x, y);
    *reinterpret_cast<__half2*>(weights + swizzled(head + 8 * half, group * 4 + i / 4) + 4 * c) = pair;
  }
  fence_async_shared();
  sync_threads(1, consumers);
  return make_float2(factor[0], factor[1]);
}

/// Lane c of a quad gives word i of four to lane i and receives its own of each, in the order of lanes.
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4]) {
  const bool odd = threadIdx.x % 2 != 0, upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? v[i] : v[i + 1], 1);
    v[i] = odd ? other : v[i];
    v[i + 1] = odd ? v[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[i + 2], 2);
    v[i] = upper ? other : v[i];
    v[i + 2] = upper ? v[i + 2] : other;
  }
}

/// Divides, rotates back, and writes the group's columns of its warps' heads.
__device__ __forceinline__ void write_results(float (&o)[128], const Running& running, const float* sinks,
                                              uint32_t group, Control& control, const float2* angles,
                                              __half* out) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const uint32_t head = threadIdx.x % 128 / 32 * 16 + g;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = running.sum[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (c == 0) control.sums[group][head + 8 * half] = sum;
  }
  sync_threads(1, consumers);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t h = head + 8 * half;
    // A sink far above every score makes this infinite, the result 0.
    const float sink = exp2_fast(fmaf(__ldg(sinks + h), log2_e, -running.maximum[half]));
    const float inverse = __fdiv_rn(1.0f, control.sums[0][h] + control.sums[1][h] + sink);
    uint4* row = reinterpret_cast<uint4*>(out + size_t{h} * columns + group * 256) + c;
#pragma unroll
    for (int tile = 0; tile < 32; tile += 4) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (tile + i) + 2 * half;
        float x = o[at] * inverse, y = o[at + 1] * inverse;
        if (tile >= 24 && group == 1) rotate_inverse(x, y, angles[4 * (tile + i - 24) + c]);
        packed[i] = pack_f16(x, y);
      }
      transpose_quad(packed);
      row[tile] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
  }
}

/// Sums over the blocks of one list; `block` counts those of all tasks.
__device__ __forceinline__ void attend(float (&o)[128], Running& running, uint32_t count, const Tiles& tiles,
                                       Control& control, uint32_t& block) {
  const uint32_t group = threadIdx.x / 128, head = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const float2 scale = make_float2(control.scales[head], control.scales[head + 8]);
  float s[16];
#pragma unroll
  for (float& x : o) x = 0;
  for (int left = static_cast<int>(count); left > 0; left -= block_rows, ++block) {
    const uint32_t buffer = block % buffers;
    const uint8_t* rows = tiles.rows + buffer * block_bytes;
    barrier_wait(&control.full[buffer], block / buffers % 2);
    fence_async_shared();  // the copies were ordinary stores of other threads
    start_scores(s, tiles.query, rows, group);
    wgmma_wait<0>();
    wgmma_pin(s);
    if (left <= block_rows && threadIdx.x % 128 == 0) barrier_arrive(&control.query_empty);
    const int own_left = left - static_cast<int>(32 * group);
    const float2 factor = weigh(s, own_left, scale, group, control, tiles.weights, running);
    if (__any_sync(0xffffffffu, factor.x != 1.0f || factor.y != 1.0f)) {
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] *= i / 2 % 2 == 0 ? factor.x : factor.y;
    }
    start_values(o, tiles.weights, rows, group);
    wgmma_wait<0>();
    wgmma_pin(o);
    if (threadIdx.x % 128 == 0) barrier_arrive(&control.empty[buffer]);
  }
}

__device__ __forceinline__ void run_tasks(const PrefillAttention& a, const Tiles& tiles, Control& control) {
  const uint32_t group = threadIdx.x / 128, tasks = task_count(a);
  uint32_t block = 0;
  for (uint32_t number = blockIdx.x, turn = 0; number < tasks; number += gridDim.x, ++turn) {
    const Task task(a, number);
    float2* angles = control.angles[turn % 2];
    if (threadIdx.x < rope_pair_count) {
      angles[threadIdx.x] = rope_angle(a.position + task.token, a.frequencies, static_cast<int>(threadIdx.x));
    }
    sync_threads(1, consumers);
    barrier_wait(&control.query_full, turn % 2);
    prepare_queries(tiles.query, angles, control.scales);
    fence_async_shared();
    sync_threads(1, consumers);
    float o[128];
    Running running;
    attend(o, running, PrefillRows(a, task.token).count, tiles, control, block);
    write_results(o, running, a.sinks + task.head, group, control, angles, a.out + task.at);
  }
}

#endif

__global__ void __launch_bounds__(consumers + producers, 1) attend_kernel(PrefillAttention a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t dynamic[];
  __shared__ Control control;
  const uint32_t misplaced = shared_address(dynamic) % 1024;
  uint8_t* base = dynamic + (misplaced == 0 ? 0 : 1024 - misplaced);
  const Tiles tiles{base, base + block_bytes, base + (1 + buffers) * block_bytes};
  if (threadIdx.x == 0) {
    for (int i = 0; i < buffers; ++i) {
      barrier_init(&control.full[i], producers);
      barrier_init(&control.empty[i], consumers / 128);
    }
    barrier_init(&control.query_full, producers);
    barrier_init(&control.query_empty, consumers / 128);
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= consumers) {
    shrink_registers<40>();
    copy_tasks(a, tiles, control);
  } else {
    grow_registers<232>();
    run_tasks(a, tiles, control);
  }
#endif
}

}  // namespace

cudaError_t prefill_attention_warpgroup(const PrefillAttention& arguments, cudaStream_t stream) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(attend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  const uint32_t tasks = arguments.tokens * (arguments.heads / block_heads);
  const uint32_t blocks = std::min(tasks, static_cast<uint32_t>(processors));
  attend_kernel<<<blocks, consumers + producers, shared_bytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
