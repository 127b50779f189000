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
  uint8_t* query;    // [8][64 heads][64], at last the results [2][64 heads][256]
  uint8_t* rows;     // [buffers][8][64 rows][64]
  uint8_t* weights;  // [64 heads][64 rows]
};

struct Control {
  uint64_t full[buffers];
  uint64_t empty[buffers];
  float2 angles[2][rope_pair_count];  // of even and odd tasks of the block
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

/// Copies the rows of the tasks' lists, block after block; rows past the end of a list become zeros.
__device__ __forceinline__ void gather_rows(const PrefillAttention& a, uint8_t* rows, Control& control) {
  const uint32_t thread = threadIdx.x % producers, lane = thread % 32, warp = thread / 32;
  const uint32_t chunk = warp % 2 * 32 + lane, first = warp / 2, tasks = task_count(a);
  uint32_t block = 0;
  for (uint32_t number = blockIdx.x; number < tasks; number += gridDim.x) {
    const PrefillRows list(a, Task(a, number).token);
    for (uint32_t begin = 0; begin < list.count; begin += block_rows, ++block) {
      const uint32_t buffer = block % buffers;
      const uint32_t own = begin + first + 2 * lane;
      const uint32_t numbers = own < list.count ? list.row(own) : 0xffffffffu;
      barrier_wait(&control.empty[buffer], block / buffers % 2 ^ 1);
      uint8_t* to = rows + buffer * block_bytes;
#pragma unroll 8
      for (uint32_t i = 0; i < block_rows / 2; ++i) {
        const uint32_t row = __shfl_sync(0xffffffffu, numbers, i);
        const bool exists = row != 0xffffffffu;
        const __half* from = a.rows + size_t{exists ? row : 0} * columns + chunk * 8;
        copy_16_async_if(to + swizzled(first + 2 * i, chunk), from, exists);
      }
      barrier_arrive_after_copies(&control.full[buffer]);
      if (begin == 0 && number + gridDim.x < tasks) {
        // The next queries on their way to L2.
        const __half* query = a.query + Task(a, number + gridDim.x).at;
#pragma unroll
        for (uint32_t i = 0; i < block_heads * columns / 64; i += producers)
          asm volatile("prefetch.global.L2 [%0];" ::"l"(query + (i + thread) * 64));
      }
    }
  }
}

/// Of the queries of a task what a thread loads: warp w has heads w, w + 8, ..., a lane chunks l and 32 + l.
struct LoadedQueries {
  uint4 v[block_heads / 8][2];

  __device__ __forceinline__ void load(const __half* query) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < block_heads / 8; ++i) {
      const uint4* head = reinterpret_cast<const uint4*>(query + size_t{warp + 8 * i} * columns);
      v[i][0] = __ldg(head + lane);
      v[i][1] = __ldg(head + 32 + lane);
    }
  }

  /// Normalised and rotated, to shared memory.
  __device__ __forceinline__ void stage(const float2* angles, uint8_t* out) const {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < block_heads / 8; ++i) {
      float sum = sum_of_squares(v[i][1], sum_of_squares(v[i][0], 0.0f));
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      const float inverse = inverse_root_mean_square(sum);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t in[4] = {v[i][half].x, v[i][half].y, v[i][half].z, v[i][half].w};
        uint32_t packed[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float2 x = unpack_f16(in[j]);
          x.x *= inverse;
          x.y *= inverse;
          if (half == 1 && lane >= 24) rotate(x.x, x.y, angles[4 * (lane - 24) + j]);
          packed[j] = pack_f16(x.x, x.y);
        }
        *reinterpret_cast<uint4*>(out + swizzled(warp + 8 * i, 32 * half + lane)) =
            make_uint4(packed[0], packed[1], packed[2], packed[3]);
      }
    }
  }
};

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
__device__ __forceinline__ float2 weigh(float (&s)[16], int left, uint32_t group, Control& control,
                                        uint8_t* weights, Running& running) {
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
    const float maximum = fmaxf(running.maximum[half], fmaxf(top[half], other) * log2_score_scale);
    factor[half] = exp2_fast(running.maximum[half] - maximum);
    running.maximum[half] = maximum;
    running.sum[half] *= factor[half];
  }
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    const int half = i / 2 % 2;
    const float x = exp2_fast(fmaf(s[i], log2_score_scale, -running.maximum[half]));
    const float y = exp2_fast(fmaf(s[i + 1], log2_score_scale, -running.maximum[half]));
    running.sum[half] += x + y;
    const __half2 pair = __floats2half2_rn(x, y);
    *reinterpret_cast<__half2*>(weights + swizzled(head + 8 * half, group * 4 + i / 4) + 4 * c) = pair;
  }
  fence_async_shared();
  sync_threads(1, consumers);
  return make_float2(factor[0], factor[1]);
}

/// Divides, rotates back, and stages the group's columns of its warps' heads.
__device__ __forceinline__ void stage_results(float (&o)[128], const Running& running, const float* sinks,
                                              uint32_t group, Control& control, const float2* angles,
                                              uint8_t* stage) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const uint32_t head = threadIdx.x % 128 / 32 * 16 + g;
  float inverse[2];
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
    inverse[half] = __fdiv_rn(1.0f, control.sums[0][h] + control.sums[1][h] + sink);
  }
#pragma unroll
  for (int i = 0; i < 128; i += 2) {
    const int half = i / 2 % 2, tile = i / 4;
    float x = o[i] * inverse[half], y = o[i + 1] * inverse[half];
    if (tile >= 24 && group == 1) rotate_inverse(x, y, angles[4 * (tile - 24) + c]);
    const uint32_t row = head + 8 * half;
    *reinterpret_cast<uint32_t*>(stage + row * 512 + (tile ^ row % 8) * 16 + 4 * c) = pack_f16(x, y);
  }
  __syncwarp();
}

/// Writes the staged columns of the warp's heads.
__device__ __forceinline__ void write_results(const uint8_t* stage, uint32_t group, __half* out) {
  const uint32_t lane = threadIdx.x % 32, first_head = threadIdx.x % 128 / 32 * 16;
#pragma unroll 4
  for (uint32_t row = first_head; row < first_head + 16; ++row) {
    const uint4 v = *reinterpret_cast<const uint4*>(stage + row * 512 + (lane ^ row % 8) * 16);
    *reinterpret_cast<uint4*>(out + size_t{row} * columns + group * 256 + lane * 8) = v;
  }
}

/// Sums over the blocks of one list; `block` counts those of all tasks.
__device__ __forceinline__ void attend(float (&o)[128], Running& running, uint32_t count, const Tiles& tiles,
                                       Control& control, uint32_t& block) {
  const uint32_t group = threadIdx.x / 128;
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
    const float2 factor =
        weigh(s, left - static_cast<int>(32 * group), group, control, tiles.weights, running);
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
  uint8_t* stage = tiles.query + group * (block_bytes / 2);
  LoadedQueries queries;
  queries.load(a.query + Task(a, blockIdx.x).at);
  uint32_t block = 0;
  for (uint32_t number = blockIdx.x, turn = 0; number < tasks; number += gridDim.x, turn ^= 1) {
    const Task task(a, number);
    if (threadIdx.x < rope_pair_count) {
      control.angles[turn][threadIdx.x] =
          rope_angle(a.position + task.token, a.frequencies, static_cast<int>(threadIdx.x));
    }
    sync_threads(1, consumers);  // the angles are there, the results of the task before are written
    queries.stage(control.angles[turn], tiles.query);
    fence_async_shared();
    sync_threads(1, consumers);
    float o[128];
    Running running;
    attend(o, running, PrefillRows(a, task.token).count, tiles, control, block);
    // All scores were taken before the last block's weights, so the queries' place is free for the results.
    stage_results(o, running, a.sinks + task.head, group, control, control.angles[turn], stage);
    // Without a condition: the old queries need no registers till here.
    queries.load(a.query + Task(a, min(number + gridDim.x, tasks - 1)).at);
    write_results(stage, group, a.out + task.at);
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
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= consumers) {
    shrink_registers<40>();
    gather_rows(a, tiles.rows, control);
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
