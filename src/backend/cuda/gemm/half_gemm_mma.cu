// F16 products with the warp-wide tensor-core instructions of sm_80 and later: 128 tokens by 128 rows a tile.
// Layout: x [tokens][stride] and w [rows][cols] in F16; tiles of 64 columns in shared memory, chunk k (16
// bytes) of row r at chunk k xor r mod 8, so that fragment loads do not conflict. Results F32 or F16.
// Preconditions: half_gemm_tiles.cuh; columns a multiple of 8, addresses of 16 bytes.
// FLOPs 2 * tokens * rows * cols per term; 32 KiB are copied for 2.1 MFLOP.
// Why: three stages of 32 KiB fit the 99 KiB of the smaller chips; eight warps of 64 x 32 sums need 64
// registers for them and read 12 KiB of fragments for 16 columns, below what shared memory gives.
#include <algorithm>

#include "backend/cuda/gemm/half_gemm_tiles.cuh"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/mma.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t tile_rows = 128;
constexpr uint32_t stage_columns = 64;
constexpr uint32_t row_bytes = stage_columns * 2;
constexpr uint32_t stages = 3;
constexpr uint32_t operand_bytes = 128 * row_bytes;
constexpr uint32_t stage_bytes = 2 * operand_bytes;
constexpr uint32_t kernel_threads = 256;
constexpr uint32_t band_tiles = 16;
constexpr int warp_tokens = 64, warp_rows = 32;

struct Launch {
  const __half* x[max_half_products][2];
  const __half* w[max_half_products][2];
  uint32_t x_stride[max_half_products];
  uint32_t group_cols[max_half_products];
  HalfTiles tiles;
};

__device__ __forceinline__ uint32_t chunk_at(uint32_t row, uint32_t chunk) {
  return row * row_bytes + (chunk ^ row % 8) * 16;
}

/// Copies 128 rows from `first` of 64 columns from `column`; what lies outside arrives as zeros.
__device__ __forceinline__ void copy_operand(uint8_t* shared, const __half* matrix, uint32_t stride,
                                             uint32_t first, uint32_t end, uint32_t column, uint32_t cols) {
  const uint32_t row = threadIdx.x / 8, chunk = threadIdx.x % 8;
  const bool inside = column + 8 * chunk < cols;
  const __half* const from = matrix + size_t{first + row} * stride + column + 8 * chunk;
#pragma unroll
  for (uint32_t i = 0; i < 128; i += kernel_threads / 8) {
    const bool valid = inside && first + row + i < end;
    copy_16_async_if(shared + chunk_at(row, chunk) + i * row_bytes, valid ? from + i * stride : matrix,
                     valid);
  }
}

/// The products of a warp's 64 tokens by 32 rows over the 64 columns of a stage.
__device__ __forceinline__ void multiply_stage(const uint8_t* x, const uint8_t* w,
                                               float (&c)[warp_tokens / 16][warp_rows / 2]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t x_row = warp / 4 * warp_tokens + lane % 16, x_chunk = lane / 16;
  const uint32_t w_row = warp % 4 * warp_rows + lane / 16 * 8 + lane % 8, w_chunk = lane / 8 % 2;
#pragma unroll
  for (uint32_t k = 0; k < stage_columns / 16; ++k) {
    uint32_t a[warp_tokens / 16][4], b[warp_rows / 16][4];
#pragma unroll
    for (uint32_t m = 0; m < warp_tokens / 16; ++m) {
      load_matrices(a[m], x + chunk_at(x_row, 2 * k + x_chunk) + 16 * m * row_bytes);
    }
#pragma unroll
    for (uint32_t n = 0; n < warp_rows / 16; ++n) {
      load_matrices(b[n], w + chunk_at(w_row, 2 * k + w_chunk) + 16 * n * row_bytes);
    }
#pragma unroll
    for (uint32_t m = 0; m < warp_tokens / 16; ++m) {
#pragma unroll
      for (uint32_t n = 0; n < warp_rows / 8; ++n) {
        float(&sums)[4] = *reinterpret_cast<float(*)[4]>(&c[m][4 * n]);
        mma_f16(sums, a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
}

__global__ void __launch_bounds__(kernel_threads, 2) mma_kernel(const __grid_constant__ Launch launch) {
  extern __shared__ uint4 shared[];
  uint8_t* const buffer = reinterpret_cast<uint8_t*>(shared);
  const HalfTiles& tiles = launch.tiles;
  const HalfTile tile = half_tile(tiles, blockIdx.x, band_tiles);
  const HalfTiledProduct& p = tiles.product[tile.product];
  const uint32_t first_token = tile.token_tile * tokens_of_half_tile;
  const uint32_t steps_of_term = (p.cols + stage_columns - 1) / stage_columns,
                 steps = steps_of_term * p.terms;
  const uint32_t x_stride = launch.x_stride[tile.product];
  const uint32_t x_column = tile.group * launch.group_cols[tile.product];
  const auto copy_step = [&](uint32_t step) {
    if (step < steps) {
      uint8_t* const stage = buffer + step % stages * stage_bytes;
      const uint32_t term = step / steps_of_term, column = step % steps_of_term * stage_columns;
      copy_operand(stage, launch.x[tile.product][x_plane(term)] + x_column, x_stride, first_token,
                   tiles.tokens, column, p.cols);
      copy_operand(stage + operand_bytes, launch.w[tile.product][w_plane(term)], p.cols, tile.first_row,
                   tile.end_row, column, p.cols);
    }
    commit_copies();
  };
  float c[warp_tokens / 16][warp_rows / 2] = {};
  for (uint32_t step = 0; step + 1 < stages; ++step) copy_step(step);
  for (uint32_t step = 0; step < steps; ++step) {
    wait_for_copy_groups<stages - 2>();
    __syncthreads();
    copy_step(step + stages - 1);
    const uint8_t* const stage = buffer + step % stages * stage_bytes;
    multiply_stage(stage, stage + operand_bytes, c);
  }
  const uint32_t warp = threadIdx.x / 32, row = tile.first_row + warp % 4 * warp_rows;
#pragma unroll
  for (int m = 0; m < warp_tokens / 16; ++m) {
    const uint32_t token = first_token + warp / 4 * warp_tokens + 16 * m;
    store_tile<warp_rows>(p, c[m], token, tiles.tokens, row, tile.end_row);
  }
}

}  // namespace

cudaError_t half_gemm_mma(std::span<const HalfProduct> products, uint32_t tokens, cudaStream_t stream) {
  Launch launch = {};
  HalfTiles& tiles = launch.tiles;
  tiles.tokens = tokens;
  tiles.token_tiles = (tokens + tokens_of_half_tile - 1) / tokens_of_half_tile;
  for (const HalfProduct& product : products) {
    const uint32_t i = tiles.products++;
    HalfTiledProduct& p = tiles.product[i];
    p = tiled_product(product, tile_rows);
    p.first_tile = tiles.tiles;
    tiles.tiles += row_tiles(p) * tiles.token_tiles;
    launch.x[i][0] = product.job.x.high;
    launch.x[i][1] = product.job.x.low;
    launch.w[i][0] = product.w_high;
    launch.w[i][1] = product.w_low;
    launch.x_stride[i] = product.job.x.stride;
    launch.group_cols[i] = product.job.group_cols;
  }
  constexpr int shared_bytes = stages * stage_bytes;
  const cudaError_t status =
      cudaFuncSetAttribute(mma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  mma_kernel<<<tiles.tiles, kernel_threads, shared_bytes, stream>>>(launch);
  return cudaPeekAtLastError();
}

}  // namespace ds4::cuda
