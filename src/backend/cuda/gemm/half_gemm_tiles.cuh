// How the F16 products of one launch are cut into tiles, and how a tile's sums are stored; for the kernels of
// half_gemm().
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <span>

#include "backend/cuda/gemm/half_gemm.hpp"

namespace ds4::cuda {

inline constexpr int max_half_products = 8;
inline constexpr uint32_t tokens_of_half_tile = 128;

/// A job with its weights in F16: w_high + w_low when x.low is set and the weights are not F16.
struct HalfProduct {
  HalfGemmJob job;
  const __half* w_high = nullptr;
  const __half* w_low = nullptr;
};

/// The two implementations, the first where has_warpgroup_products(): at most max_half_products valid
/// products with rows, tokens >= 1.
cudaError_t half_gemm_wgmma(std::span<const HalfProduct> products, uint32_t tokens, cudaStream_t stream);
cudaError_t half_gemm_mma(std::span<const HalfProduct> products, uint32_t tokens, cudaStream_t stream);

/// The part of a product that concerns its tiles and results.
struct HalfTiledProduct {
  float* out;
  __half* out_half;
  uint32_t out_stride;
  bool aligned;  // results may be stored as 16 bytes
  uint32_t rows, cols;
  uint32_t group_rows, tiles_per_group;  // row tiles do not cross groups
  uint32_t tile_rows;
  uint32_t terms;  // 1; with low planes 2 (x) or 3 (x and w)
  uint32_t first_tile;
};

struct HalfTiles {
  HalfTiledProduct product[max_half_products];
  uint32_t products;
  uint32_t tokens;
  uint32_t token_tiles;
  uint32_t tiles;
};

/// Planes of the terms of a product, 0 high and 1 low: high . high, low x . high w, high x . low w.
__host__ __device__ __forceinline__ uint32_t x_plane(uint32_t term) {
  return term == 1 ? 1 : 0;
}
__host__ __device__ __forceinline__ uint32_t w_plane(uint32_t term) {
  return term == 2 ? 1 : 0;
}

/// A product without its place among the others.
inline HalfTiledProduct tiled_product(const HalfProduct& product, uint32_t tile_rows) {
  const HalfGemmJob& job = product.job;
  const uint32_t group_rows = job.rows_per_group == 0 ? job.w.rows : job.rows_per_group;
  const uintptr_t address = reinterpret_cast<uintptr_t>(job.out) | reinterpret_cast<uintptr_t>(job.out_half);
  const bool aligned =
      address % 16 == 0 && job.out_stride % 8 == 0 && group_rows % 8 == 0 && job.w.rows % 8 == 0;
  const uint32_t terms = job.x.low == nullptr ? 1 : product.w_low == nullptr ? 2 : 3;
  return {job.out,
          job.out_half,
          job.out_stride,
          aligned,
          job.w.rows,
          job.w.cols,
          group_rows,
          (group_rows + tile_rows - 1) / tile_rows,
          tile_rows,
          terms,
          0};
}

__host__ __device__ __forceinline__ uint32_t row_tiles(const HalfTiledProduct& p) {
  return (p.rows + p.group_rows - 1) / p.group_rows * p.tiles_per_group;
}

struct HalfTile {
  uint32_t product, token_tile, group, first_row, end_row;
};

/// Neighbouring tiles share weights within a band of token tiles, so that a wave of blocks reads about as
/// many activations as weights.
__device__ __forceinline__ HalfTile half_tile(const HalfTiles& tiles, uint32_t index, uint32_t band) {
  HalfTile tile = {};
  while (tile.product + 1 < tiles.products && index >= tiles.product[tile.product + 1].first_tile)
    ++tile.product;
  const HalfTiledProduct& p = tiles.product[tile.product];
  index -= p.first_tile;
  const uint32_t in_band = band * row_tiles(p), first_of_band = index / in_band * band;
  const uint32_t width = min(band, tiles.token_tiles - first_of_band);
  index %= in_band;
  tile.token_tile = first_of_band + index % width;
  const uint32_t row_tile = index / width;
  tile.group = row_tile / p.tiles_per_group;
  const uint32_t group_row = tile.group * p.group_rows;
  tile.first_row = group_row + row_tile % p.tiles_per_group * p.tile_rows;
  tile.end_row = min(group_row + p.group_rows, p.rows);
  return tile;
}

/// Two results as F16, rounded to nearest, infinities to the largest number; NaN stays.
__device__ __forceinline__ uint32_t clamped_half2(float low, float high) {
  const __half2 limit = __half2half2(__ushort_as_half(0x7bff));
  const __half2 v = __hmin2_nan(__hmax2_nan(__floats2half2_rn(low, high), __hneg2(limit)), limit);
  return *reinterpret_cast<const uint32_t*>(&v);
}

/// Lane q of a quad gives r[0 .. 3] and receives r[q] of lanes 0 .. 3.
__device__ __forceinline__ void transpose_quad(uint32_t (&r)[4]) {
  const uint32_t lane = threadIdx.x % 4;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (lane & static_cast<uint32_t>(bit)) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t received = __shfl_xor_sync(~0u, upper ? r[i] : r[i + bit], bit);
      r[i] = upper ? received : r[i];
      r[i + bit] = upper ? r[i + bit] : received;
    }
  }
}

/// 16 tokens by n rows of a warp as tensor cores leave them: c[4 j + i] is token g + 8 (i / 2), row 8 j + 2 q
/// + i mod 2 for lane 4 g + q. `token` is the first of the 16. All lanes of the warp call this. Stores of 64
/// bytes a token: filling lines of 128 with more exchanges was slower.
template <int n>
__device__ __forceinline__ void store_tile(const HalfTiledProduct& p, const float (&c)[n / 2], uint32_t token,
                                           uint32_t tokens, uint32_t first_row, uint32_t end_row) {
  const uint32_t q = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t t = token + g + 8 * half;
    const size_t at = size_t{t} * p.out_stride + first_row;
    const bool inside = t < tokens;
    if (!p.aligned) {
#pragma unroll
      for (int i = 0; i < n / 4; ++i) {
        const uint32_t row = 8 * (i / 2) + 2 * q + i % 2;
        const float v = c[4 * (i / 2) + 2 * half + i % 2];
        if (!inside || first_row + row >= end_row) continue;
        if (p.out != nullptr) {
          p.out[at + row] = v;
        } else {
          p.out_half[at + row] = __ushort_as_half(static_cast<unsigned short>(clamped_half2(v, v)));
        }
      }
    } else if (p.out != nullptr) {
#pragma unroll
      for (int j = 0; j < n / 8; j += 2) {
        // Even lanes take four rows of block j, odd ones of block j + 1.
        const float* a = c + 4 * j + 2 * half;
        const float* b = a + 4;
        const bool odd = q % 2 != 0;
        const float x = __shfl_xor_sync(~0u, odd ? a[0] : b[0], 1);
        const float y = __shfl_xor_sync(~0u, odd ? a[1] : b[1], 1);
        const uint32_t row = 8 * (j + q % 2) + 2 * (q & 2u);
        const float4 v = odd ? make_float4(x, y, b[0], b[1]) : make_float4(a[0], a[1], x, y);
        if (inside && first_row + row < end_row) *reinterpret_cast<float4*>(p.out + at + row) = v;
      }
    } else {
#pragma unroll
      for (int j = 0; j < n / 8; j += 4) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const sums = c + 4 * (j + i) + 2 * half;
          r[i] = clamped_half2(sums[0], sums[1]);
        }
        transpose_quad(r);
        const uint32_t row = 8 * (j + q);
        if (inside && first_row + row < end_row) {
          *reinterpret_cast<uint4*>(p.out_half + at + row) = make_uint4(r[0], r[1], r[2], r[3]);
        }
      }
    }
  }
}

}  // namespace ds4::cuda
