// What: attention of one token of a prefill pass, 32 heads at a time, over F16 rows that serve as keys and
// values (docs/model.md §5), with products of single warps (sm_80 and later); heads that do not exist are
// zeros. Layout: block = (32 heads, token), 8 warps; warp w owns columns 64 w .. 64 w + 63 of queries, rows
// and results. Rows come in tiles of 32 into two buffers, chunk k (16 bytes) of row r at place k xor r mod 8.
// Partial scores of the warps are added in shared memory. Preconditions: none on the count of heads; tiles
// depend on the token's own list alone. Bytes and FLOPs: 1 KB and 65,536 FLOP for a row and 32 heads. Why
// this shape: 99 KB of shared memory is all that some processors have; with columns split over warps, queries
// and results stay in registers and a row is read once as keys and once as values.
#include "backend/cuda/attention/prefill_rows.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/warpgroup.hpp"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/mma.cuh"

namespace ds4::cuda {
namespace {

constexpr int warps = 8;
constexpr int threads = 32 * warps;
constexpr int block_heads = 32;
constexpr int tile_rows = 32;
constexpr int columns = 512;
constexpr int weight_stride = tile_rows + 8;  // F16; 8 heads fall into distinct banks

struct Shared {
  uint8_t rows[2][tile_rows][1024];
  float scores[warps][block_heads][tile_rows];  // column n of head h at n xor 8 (h mod 4)
  __half weights[block_heads][weight_stride];
  float factors[block_heads];  // of the queries, of the sums so far, at last of the results
  float2 angles[rope_pair_count];
};

/// Loads the tile that begins at `begin`; rows past the end of the list become zeros.
__device__ inline void start_tile(const PrefillAttention& a, const PrefillRows& list, uint32_t begin,
                                  uint8_t (&to)[tile_rows][1024]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t own = begin + lane;
  const uint32_t number = own < list.count ? list.row(own) : 0xffffffffu;
#pragma unroll
  for (uint32_t i = 0; i < tile_rows / warps; ++i) {
    const uint32_t r = warp + warps * i;
    const uint32_t row = __shfl_sync(0xffffffffu, number, r);
    const bool exists = row != 0xffffffffu;
    const __half* from = a.rows + size_t{exists ? row : 0} * columns;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t chunk = 32 * half + lane;
      copy_16_async_if(&to[r][(chunk ^ r % 8) * 16], from + 8 * chunk, exists);
    }
  }
  commit_copies();
}

/// Queries [m tile of 16 heads][step of 16 columns] of the warp's columns, normalised and rotated.
struct QueryFragments {
  uint32_t a[2][4][4];
};

__device__ inline void load_queries(const PrefillAttention& a, size_t first, uint32_t heads_left,
                                    Shared& shared, QueryFragments& q) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const __half* query = a.query + first * columns;
  for (uint32_t h = warp; h < block_heads; h += warps) {
    if (h >= heads_left) continue;
    const uint4* head = reinterpret_cast<const uint4*>(query + size_t{h} * columns);
    const float sum =
        warp_sum(sum_of_squares(__ldg(head + 32 + lane), sum_of_squares(__ldg(head + lane), 0.0f)));
    if (lane == 0) shared.factors[h] = inverse_root_mean_square(sum);
  }
  if (threadIdx.x < rope_pair_count) {
    shared.angles[threadIdx.x] =
        rope_angle(a.position + blockIdx.y, a.frequencies, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t head = 16 * m + g + 8 * (i % 2), column = 64 * warp + 16 * step + 2 * c + 8 * (i / 2);
        if (head >= heads_left) {
          q.a[m][step][i] = 0;
          continue;
        }
        float2 x =
            unpack_f16(__ldg(reinterpret_cast<const uint32_t*>(query + size_t{head} * columns + column)));
        const float factor = shared.factors[head];
        x.x *= factor;
        x.y *= factor;
        if (column >= 448) rotate(x.x, x.y, shared.angles[(column - 448) / 2]);
        q.a[m][step][i] = pack_f16(x.x, x.y);
      }
    }
  }
}

/// Scores of a tile over the warp's columns.
__device__ inline void score_tile(const QueryFragments& q, const uint8_t (&rows)[tile_rows][1024],
                                  float (&scores)[block_heads][tile_rows]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (uint32_t n = 0; n < tile_rows; n += 8) {
    const uint32_t row = n + lane % 8;
    float s[2][4] = {};
#pragma unroll
    for (uint32_t step = 0; step < 4; step += 2) {
      uint32_t b[4];
      load_matrices(b, &rows[row][(8 * warp + 2 * step + lane / 8 ^ row % 8) * 16]);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma_f16(s[m], q.a[m][step], b[0], b[1]);
        mma_f16(s[m], q.a[m][step + 1], b[2], b[3]);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t head = 16 * (i / 2) + g + 8 * (i % 2), column = (n + 2 * c) ^ 8 * (head % 4);
      *reinterpret_cast<float2*>(&scores[head][column]) =
          make_float2(s[i / 2][2 * (i % 2)], s[i / 2][2 * (i % 2) + 1]);
    }
  }
}

/// Running maximum, in powers of two, and sum of a head's weights; the same in its 8 threads.
struct Running {
  float maximum = -INFINITY;
  float sum = 0;
};

/// Thread t takes head t / 8 and rows 4 (t mod 8) and the next three.
__device__ inline void weigh(Shared& shared, uint32_t valid, Running& running) {
  const uint32_t head = threadIdx.x / 8, first = threadIdx.x % 8 * 4;
  float s[4] = {};
#pragma unroll
  for (int w = 0; w < warps; ++w) {
    const float4 part = *reinterpret_cast<const float4*>(&shared.scores[w][head][first ^ 8 * (head % 4)]);
    s[0] += part.x;
    s[1] += part.y;
    s[2] += part.z;
    s[3] += part.w;
  }
  float maximum = running.maximum;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    s[i] = first + i < valid ? s[i] * log2_score_scale : -INFINITY;
    maximum = fmaxf(maximum, s[i]);
  }
  for (int step = 4; step > 0; step /= 2)
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    s[i] = exp2f(s[i] - maximum);
    sum += s[i];
  }
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const float factor = exp2f(running.maximum - maximum);
  running.sum = running.sum * factor + sum;
  running.maximum = maximum;
  __half2* out = reinterpret_cast<__half2*>(&shared.weights[head][first]);
  out[0] = __floats2half2_rn(s[0], s[1]);
  out[1] = __floats2half2_rn(s[2], s[3]);
  if (first == 0) shared.factors[head] = factor;
}

/// Adds weights times values over the warp's columns.
__device__ inline void add_values(const Shared& shared, const uint8_t (&rows)[tile_rows][1024],
                                  float (&o)[2][8][4]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const float low = shared.factors[16 * m + g], high = shared.factors[16 * m + g + 8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      o[m][n][0] *= low;
      o[m][n][1] *= low;
      o[m][n][2] *= high;
      o[m][n][3] *= high;
    }
  }
#pragma unroll
  for (uint32_t step = 0; step < tile_rows / 16; ++step) {
    uint32_t p[2][4];
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t head = 16 * (i / 4) + g + 8 * (i % 2), row = 16 * step + 2 * c + 8 * (i % 4 / 2);
      p[i / 4][i % 4] = *reinterpret_cast<const uint32_t*>(&shared.weights[head][row]);
    }
    const uint32_t row = 16 * step + lane % 16;
#pragma unroll
    for (uint32_t n = 0; n < 8; n += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, &rows[row][(8 * warp + n + lane / 16 ^ row % 8) * 16]);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma_f16(o[m][n], p[m], b[0], b[1]);
        mma_f16(o[m][n + 1], p[m], b[2], b[3]);
      }
    }
  }
}

__global__ void __launch_bounds__(threads) attend_kernel(PrefillAttention a) {
  extern __shared__ uint4 dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const uint32_t first_head = blockIdx.x * block_heads, heads_left = a.heads - first_head;
  const PrefillRows list(a, blockIdx.y);
  start_tile(a, list, 0, shared.rows[0]);
  const size_t first = size_t{blockIdx.y} * a.heads + first_head;
  QueryFragments q;
  load_queries(a, first, heads_left, shared, q);

  float o[2][8][4] = {};
  Running running;
  for (uint32_t begin = 0, buffer = 0; begin < list.count; begin += tile_rows, buffer ^= 1) {
    wait_for_copy_groups<0>();
    __syncthreads();  // the tile is there, the other buffer and the weights have been read
    if (begin + tile_rows < list.count) start_tile(a, list, begin + tile_rows, shared.rows[buffer ^ 1]);
    score_tile(q, shared.rows[buffer], shared.scores[warp]);
    __syncthreads();
    weigh(shared, list.count - begin, running);
    __syncthreads();
    add_values(shared, shared.rows[buffer], o);
  }

  __syncthreads();
  const uint32_t own_head = threadIdx.x / 8;
  if (threadIdx.x % 8 == 0 && own_head < heads_left) {
    // A sink far above every score makes this infinite, the result 0.
    const float sink = exp2f(fmaf(a.sinks[first_head + own_head], log2_e, -running.maximum));
    shared.factors[own_head] = __fdiv_rn(1.0f, running.sum + sink);
  }
  __syncthreads();
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t head = 16 * (i / 2) + g + 8 * (i % 2);
    if (head >= heads_left) continue;
    const float factor = shared.factors[head];
    uint32_t* out = reinterpret_cast<uint32_t*>(a.out + (first + head) * columns + 64 * warp + 2 * c);
#pragma unroll
    for (uint32_t n = 0; n < 8; ++n) {
      float x = o[i / 2][n][2 * (i % 2)] * factor, y = o[i / 2][n][2 * (i % 2) + 1] * factor;
      if (warp == warps - 1) rotate_inverse(x, y, shared.angles[4 * n + c]);
      out[4 * n] = pack_f16(x, y);
    }
  }
}

}  // namespace

cudaError_t prefill_attention_portable(const PrefillAttention& arguments, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(attend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (error != cudaSuccess) return error;
  const dim3 grid((arguments.heads + block_heads - 1) / block_heads, arguments.tokens);
  attend_kernel<<<grid, threads, sizeof(Shared), stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t prefill_attention(const PrefillAttention& arguments, cudaStream_t stream, PrefillKernel kernel) {
  if (arguments.tokens == 0 || arguments.heads == 0) return cudaSuccess;
  if (arguments.heads % 64 == 0 && kernel == PrefillKernel::best && has_warpgroup_products())
    return prefill_attention_warpgroup(arguments, stream);
  return prefill_attention_portable(arguments, stream);
}

}  // namespace ds4::cuda
