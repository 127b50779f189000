// What: attention of one token of a prefill pass, 64 heads at a time, over F16 rows that serve as keys and
// values (docs/model.md §5), with warpgroup products (sm_90a). Layout: block = (64 heads, token): two
// warpgroups compute, a third gathers rows in blocks of 64 by their numbers into two buffers. Tiles of 64
// columns in the 128-byte swizzle. Group w scores rows 32 w .. 32 w + 31 of a block for all heads and keeps
// columns 256 w .. 256 w + 255 of the result (128 registers a thread). Preconditions: heads a multiple of 64;
// block boundaries depend on the token's own list alone. Bytes and FLOPs: 1 KB and 131,072 FLOP for a row and
// 64 heads; 128 KB of queries and results a token. Why this shape: rows come from L2, where 64 heads a byte
// are what balances copies (24 B a clock) and tensor cores (4096 FLOP a clock); the same bytes in shared
// memory are read as keys and, transposed, as values.
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
  float2 angles[rope_pair_count];
  float maxima[2][block_heads];
  float sums[2][block_heads];
};

/// Copies the rows of the list, block after block; rows past its end become zeros.
__device__ __forceinline__ void gather_rows(const PrefillAttention& a, const PrefillRows& list, uint8_t* rows,
                                            Control& control) {
  const uint32_t thread = threadIdx.x % producers, lane = thread % 32, warp = thread / 32;
  const uint32_t chunk = warp % 2 * 32 + lane, first = warp / 2;
  for (uint32_t begin = 0, block = 0; begin < list.count; begin += block_rows, ++block) {
    const uint32_t buffer = block % buffers;
    const uint32_t own = begin + first + 2 * lane;
    const uint32_t number = own < list.count ? list.row(own) : 0xffffffffu;
    barrier_wait(&control.empty[buffer], block / buffers % 2 ^ 1);
    uint8_t* to = rows + buffer * block_bytes;
#pragma unroll 8
    for (uint32_t i = 0; i < block_rows / 2; ++i) {
      const uint32_t row = __shfl_sync(0xffffffffu, number, i);
      const bool exists = row != 0xffffffffu;
      const __half* from = a.rows + size_t{exists ? row : 0} * columns + chunk * 8;
      copy_16_async_if(to + swizzled(first + 2 * i, chunk), from, exists);
    }
    barrier_arrive_after_copies(&control.full[buffer]);
  }
}

/// Normalises and rotates the queries of the block's heads into shared memory; warp w takes heads w, w + 8,
/// ...
__device__ __forceinline__ void stage_queries(const __half* query, const float2* angles, uint8_t* out) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int per_warp = block_heads / 8;
  uint4 v[per_warp][2];
#pragma unroll
  for (int i = 0; i < per_warp; ++i) {
    const uint4* head = reinterpret_cast<const uint4*>(query + size_t{warp + 8 * i} * columns);
    v[i][0] = __ldg(head + lane);
    v[i][1] = __ldg(head + 32 + lane);
  }
  sync_threads(1, consumers);  // the angles are there
#pragma unroll
  for (int i = 0; i < per_warp; ++i) {
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
    factor[half] = exp2f(running.maximum[half] - maximum);
    running.maximum[half] = maximum;
    running.sum[half] *= factor[half];
  }
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    const int half = i / 2 % 2;
    const float x = exp2f(fmaf(s[i], log2_score_scale, -running.maximum[half]));
    const float y = exp2f(fmaf(s[i + 1], log2_score_scale, -running.maximum[half]));
    running.sum[half] += x + y;
    const __half2 pair = __floats2half2_rn(x, y);
    *reinterpret_cast<__half2*>(weights + swizzled(head + 8 * half, group * 4 + i / 4) + 4 * c) = pair;
  }
  fence_async_shared();
  sync_threads(1, consumers);
  return make_float2(factor[0], factor[1]);
}

/// Divides, rotates back, and writes the group's columns of its warps' heads.
__device__ __forceinline__ void finish(float (&o)[128], const Running& running, const float* sinks,
                                       uint32_t group, Control& control, uint8_t* stage, __half* out) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const uint32_t first_head = threadIdx.x % 128 / 32 * 16, head = first_head + g;
  float sum[2], inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] = running.sum[half];
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    if (c == 0) control.sums[group][head + 8 * half] = sum[half];
  }
  sync_threads(1, consumers);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t h = head + 8 * half;
    // A sink far above every score makes this infinite, the result 0.
    const float sink = exp2f(fmaf(__ldg(sinks + h), log2_e, -running.maximum[half]));
    inverse[half] = __fdiv_rn(1.0f, control.sums[0][h] + control.sums[1][h] + sink);
  }
#pragma unroll
  for (int i = 0; i < 128; i += 2) {
    const int half = i / 2 % 2, tile = i / 4;
    float x = o[i] * inverse[half], y = o[i + 1] * inverse[half];
    if (tile >= 24 && group == 1) rotate_inverse(x, y, control.angles[4 * (tile - 24) + c]);
    const uint32_t row = head + 8 * half;
    *reinterpret_cast<uint32_t*>(stage + row * 512 + (tile ^ row % 8) * 16 + 4 * c) = pack_f16(x, y);
  }
  __syncwarp();
#pragma unroll 4
  for (uint32_t row = first_head; row < first_head + 16; ++row) {
    const uint4 v = *reinterpret_cast<const uint4*>(stage + row * 512 + (lane ^ row % 8) * 16);
    *reinterpret_cast<uint4*>(out + size_t{row} * columns + group * 256 + lane * 8) = v;
  }
}

__device__ __forceinline__ void attend(const PrefillAttention& a, uint32_t count, const Tiles& tiles,
                                       Control& control) {
  const uint32_t group = threadIdx.x / 128, first_head = blockIdx.x * block_heads;
  const size_t at = (size_t{blockIdx.y} * a.heads + first_head) * columns;
  if (threadIdx.x < rope_pair_count) {
    control.angles[threadIdx.x] =
        rope_angle(a.position + blockIdx.y, a.frequencies, static_cast<int>(threadIdx.x));
  }
  stage_queries(a.query + at, control.angles, tiles.query);
  fence_async_shared();
  sync_threads(1, consumers);

  float o[128], s[16];
#pragma unroll
  for (float& x : o) x = 0;
  Running running;
  for (uint32_t block = 0; block * block_rows < count; ++block) {
    const uint32_t buffer = block % buffers;
    const uint8_t* rows = tiles.rows + buffer * block_bytes;
    barrier_wait(&control.full[buffer], block / buffers % 2);
    fence_async_shared();  // the copies were ordinary stores of other threads
    start_scores(s, tiles.query, rows, group);
    wgmma_wait<0>();
    wgmma_pin(s);
    const int left = static_cast<int>(count - block * block_rows) - static_cast<int>(32 * group);
    const float2 factor = weigh(s, left, group, control, tiles.weights, running);
    if (__any_sync(0xffffffffu, factor.x != 1.0f || factor.y != 1.0f)) {
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] *= i / 2 % 2 == 0 ? factor.x : factor.y;
    }
    start_values(o, tiles.weights, rows, group);
    wgmma_wait<0>();
    wgmma_pin(o);
    if (threadIdx.x % 128 == 0) barrier_arrive(&control.empty[buffer]);
  }
  // All scores were taken before the last block's weights, so the queries' place is free for the results.
  finish(o, running, a.sinks + first_head, group, control, tiles.query + group * (block_bytes / 2),
         a.out + at);
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
  const PrefillRows list(a, blockIdx.y);
  __syncthreads();
  if (threadIdx.x >= consumers) {
    shrink_registers<40>();
    gather_rows(a, list, tiles.rows, control);
  } else {
    grow_registers<232>();
    attend(a, list.count, tiles, control);
  }
#endif
}

}  // namespace

cudaError_t prefill_attention_warpgroup(const PrefillAttention& arguments, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(attend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(arguments.heads / block_heads, arguments.tokens);
  attend_kernel<<<grid, consumers + producers, shared_bytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace ds4::cuda
