// What: score of every visible index row, the weighted sum over heads of max(0, query . key).
// Layout: a warp takes 16 keys at a time and all heads; heads are the M dimension of m16n8k16, query
// fragments lie in
//   shared memory in the order the lanes read them. Columns are permuted as in index_key.cuh.
// Prepared query values are FP4 times powers of two, so BF16 holds both factors exactly; every block prepares
// all heads for itself, which takes less time than a kernel of its own would. Bytes and FLOPs: 68 B and
// 16,384 FLOP (64 heads) a key; 32,768 keys (128k tokens) are 2.2 MB and 0.54 GFLOP. Why this shape: no
// unpacked key is stored anywhere, and two key tiles for a query fragment halve shared traffic.
#include "backend/cuda/attention/heads.cuh"
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/indexer/index_key.cuh"
#include "backend/cuda/indexer/indexer.hpp"

namespace ds4::cuda {
namespace {

constexpr int warps = 8;
constexpr int keys_per_warp = 16;
constexpr uint32_t keys_per_block = warps * keys_per_warp;
constexpr uint32_t blocks_of_launch = 264;  // two for each processor of an H200; the loop takes the rest
constexpr int steps = 8;                    // of 16 along the 128 dimensions

/// Query fragments [heads / 16][steps][32 lanes], prepared and rounded, heads that do not exist as zeros,
/// then the scaled head weights. A warp takes a head at a time.
__device__ inline void stage_query(const IndexerArguments& a, uint32_t tiles, const float2* angles,
                                   uint16_t* fragments, float* weights) {
  const uint32_t lane = threadIdx.x % 32;
  const float4* query = reinterpret_cast<const float4*>(a.query + size_t{blockIdx.y} * a.heads * 128);
#pragma unroll 2
  for (uint32_t head = threadIdx.x / 32; head < tiles * 16; head += warps) {
    const float4 raw = head < a.heads ? query[head * 32 + lane] : make_float4(0, 0, 0, 0);
    float v[4] = {raw.x, raw.y, raw.z, raw.w};
    prepare_index_query(v, angles, static_cast<int>(lane));
    // Element e of the head is half (e / 16 mod 2) of the pair for column e mod 16 of block e / 32.
    const uint32_t block = lane / 8, half = lane / 4 % 2;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t column = 4 * lane % 16 + i, step = column / 2, part = column % 2 * 2 + head % 16 / 8;
      const uint32_t at = ((head / 16 * steps + step) * 32 + head % 8 * 4 + block) * 8 + part * 2 + half;
      fragments[at] = static_cast<uint16_t>(__float_as_uint(v[i]) >> 16);  // exact in BF16
    }
  }
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(128 * a.heads)));
  for (uint32_t h = threadIdx.x; h < tiles * 16; h += blockDim.x) {
    weights[h] = h < a.heads ? a.head_weights[size_t{blockIdx.y} * a.heads + h] * factor : 0.0f;
  }
}

/// Adds the 16 heads of one tile to the scores of the lane's keys 2c and 2c + 1.
__device__ inline void add_heads(const float (&product)[4], float low, float high, float (&score)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    score[i] = fmaf(low, fmaxf(product[i], 0.0f), score[i]);
    score[i] = fmaf(high, fmaxf(product[2 + i], 0.0f), score[i]);
  }
}

__global__ void __launch_bounds__(32 * warps) score_kernel(IndexerArguments a, size_t stride) {
  __shared__ float2 angles[rope_pair_count];
  start_successor();
  const RowInfo& row = a.rows[blockIdx.y];
  const uint32_t visible = visible_rows(row.position, 4);
  if (threadIdx.x < rope_pair_count) {
    angles[threadIdx.x] = rope_angle(row.position, a.frequencies, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  wait_for_predecessor();
  if (visible <= a.top_k || blockIdx.x * keys_per_block >= visible) return;
  extern __shared__ uint4 fragments[];
  const uint32_t tiles = (a.heads + 15) / 16;
  float* weights = reinterpret_cast<float*>(fragments + tiles * steps * 32);
  stage_query(a, tiles, angles, reinterpret_cast<uint16_t*>(fragments), weights);
  __syncthreads();

  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const uint8_t* const* pages = row.layers[a.layer].index_pages;
  float* scores = a.scores + blockIdx.y * stride;
  for (uint32_t first = blockIdx.x * keys_per_block + warp * keys_per_warp; first < visible;
       first += gridDim.x * keys_per_block) {
    KeyFragment key[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t j = min(first + 8 * n + g, visible - 1);  // past the end the last key is read again
      load_key(pages[j / rows_per_page] + j % rows_per_page * index_row_bytes, c, key[n]);
    }
    float score[2][2] = {};
    for (uint32_t tile = 0; tile < tiles; ++tile) {
      float product[2][4] = {};
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        const uint4 part = fragments[(tile * steps + s) * 32 + lane];
        const uint32_t query[4] = {part.x, part.y, part.z, part.w};
        mma_bf16(product[0], query, key[0].pair[2 * s], key[0].pair[2 * s + 1]);
        mma_bf16(product[1], query, key[1].pair[2 * s], key[1].pair[2 * s + 1]);
      }
      const float low = weights[tile * 16 + g], high = weights[tile * 16 + g + 8];
      add_heads(product[0], low, high, score[0]);
      add_heads(product[1], low, high, score[1]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        for (int step = 4; step < 32; step *= 2)
          score[n][i] += __shfl_xor_sync(0xffffffffu, score[n][i], step);
      }
      const uint32_t j = first + 8 * n + 2 * c;
      if (g == 0 && j < visible) scores[j] = score[n][0];
      if (g == 0 && j + 1 < visible) scores[j + 1] = score[n][1];
    }
  }
}

}  // namespace

cudaError_t score_index_rows(const IndexerArguments& arguments, cudaStream_t stream) {
  if (arguments.max_compressed <= arguments.top_k) return cudaSuccess;
  const uint32_t tiles = (arguments.heads + 15) / 16;
  const uint32_t needed = (arguments.max_compressed + keys_per_block - 1) / keys_per_block;
  const uint32_t share = (blocks_of_launch + arguments.row_count - 1) / arguments.row_count;
  const size_t shared_bytes = tiles * (steps * 32 * sizeof(uint4) + 16 * sizeof(float));
  return launch(score_kernel, dim3(needed < share ? needed : share, arguments.row_count), 32 * warps,
                shared_bytes, stream, arguments, index_score_stride(arguments.max_compressed));
}

}  // namespace ds4::cuda
