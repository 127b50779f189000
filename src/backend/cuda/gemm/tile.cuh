// The product of 16 weight rows per warp and up to 64 tokens per block, the loop that all matrix-matrix
// products share.
//
// Activations pass through shared memory in stages of 256 int8 columns (64 F32 columns), the next stage
// copied while one is multiplied; weights go from global memory to fragments (weight_fragments.cuh), one unit
// ahead. The order of every (row, token) result is: blocks of 32 columns ascending, in each an exact integer
// sum, then one F32 multiply-add (two with a minimum). For plain weights: stages of 64 columns, in each the
// tensor core's sum of BF16 products, then one F32 addition. Neither depends on the tile or on other tokens.
#pragma once

#include <type_traits>

#include "backend/cuda/gemm/async_copy.cuh"
#include "backend/cuda/gemm/weight_fragments.cuh"

namespace ds4::cuda {

inline constexpr uint32_t stage_code_columns = 256;
inline constexpr uint32_t stage_plain_columns = 64;
// Row strides 32 and 64 modulo 128 bytes: the reads of a fragment touch every bank once.
inline constexpr uint32_t stage_code_stride = stage_code_columns + 32;
inline constexpr uint32_t stage_plain_stride = stage_plain_columns * 4 + 64;
/// Bytes of a token in the two stage buffers, of either kind.
inline constexpr uint32_t stage_bytes_per_token = stage_code_stride + stage_code_columns / 32 * 4;
static_assert(stage_bytes_per_token == stage_plain_stride);

__host__ __device__ constexpr bool is_plain(TensorType type) {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16;
}

/// Units of weights that are on their way to L2 while one is multiplied.
inline constexpr uint32_t units_ahead = 4;

/// What the warps of a block share.
struct TileInputs {
  DeviceActivations x;
  uint32_t first_column;       // the activation column of weight column 0
  uint32_t cols;               // of the weights
  const uint32_t* token_rows;  // shared memory: activation row of every token of the tile
  uint8_t* stages;             // shared memory: 2 * tokens * stage_bytes_per_token
  const uint8_t* tables;       // shared memory: those of IQ2_XXS
};

template <int tokens, uint32_t threads>
__device__ __forceinline__ void copy_code_stage(const TileInputs& in, uint32_t column, uint8_t* stage) {
  constexpr uint32_t parts = stage_code_columns / 16, blocks = stage_code_columns / 32;
#pragma unroll
  for (uint32_t i = threadIdx.x; i < tokens * parts; i += threads) {
    const uint32_t token = i / parts, at = i % parts * 16;
    if (column + at < in.cols) {
      copy_16_async(stage + token * stage_code_stride + at,
                    in.x.codes + size_t{in.token_rows[token]} * in.x.stride + in.first_column + column + at);
    }
  }
  float* const scales = reinterpret_cast<float*>(stage + tokens * stage_code_stride);  // [blocks][tokens]
#pragma unroll
  for (uint32_t i = threadIdx.x; i < tokens * blocks; i += threads) {
    const uint32_t token = i / blocks, block = i % blocks;
    if (column + 32 * block < in.cols) {
      copy_4_async(
          scales + block * tokens + token,
          in.x.scales + (size_t{in.token_rows[token]} * in.x.stride + in.first_column + column) / 32 + block);
    }
  }
}

template <int tokens, uint32_t threads>
__device__ __forceinline__ void copy_plain_stage(const TileInputs& in, uint32_t column, uint8_t* stage) {
  constexpr uint32_t parts = stage_plain_columns / 4;
#pragma unroll
  for (uint32_t i = threadIdx.x; i < tokens * parts; i += threads) {
    const uint32_t token = i / parts, at = i % parts * 4;
    if (column + at < in.cols) {
      copy_16_async(stage + token * stage_plain_stride + at * 4,
                    in.x.f32 + size_t{in.token_rows[token]} * in.x.stride + in.first_column + column + at);
    }
  }
}

/// The scaled sums of one block and eight tokens: C of w times this lane's codes `b`.
template <bool has_min>
__device__ __forceinline__ void scale_products(const CodeBlock& w, uint2 b, float2 x, const int (&dot)[4],
                                               float (&sum)[4]) {
  if constexpr (has_min) {
    int least[4];
    const uint32_t a[4] = {w.min[0], w.min[1], w.min[0], w.min[1]};
    mma_s8(least, a, b, dot_start);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value =
          __fmaf_rn(w.minus_dmin[i / 2], dot_value(least[i]), __fmul_rn(w.d[i / 2], dot_value(dot[i])));
      sum[i] = __fmaf_rn(i % 2 == 0 ? x.x : x.y, value, sum[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = __fmul_rn(w.d[i / 2], i % 2 == 0 ? x.x : x.y);
      sum[i] = __fmaf_rn(scale, dot_value(dot[i]), sum[i]);
    }
  }
}

/// Adds block `block` of the stage to the sums of `matrices` x 16 rows and n_tiles x 8 tokens. Up to four
/// tensor-core products in flight before the first is scaled.
template <class Fragments, int matrices, int n_tiles>
__device__ __forceinline__ void add_block(const CodeBlock (&w)[matrices], const uint8_t* stage,
                                          uint32_t block, float (&sums)[matrices][n_tiles][4]) {
  constexpr int tokens = n_tiles * 8;
  constexpr int batch = n_tiles * matrices <= 4 ? n_tiles : 4 / matrices;
  const uint32_t g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const uint8_t* const codes =
      stage + g * stage_code_stride + block * 32 + c * (Fragments::split_columns ? 4 : 8);
  const float* const scales =
      reinterpret_cast<const float*>(stage + tokens * stage_code_stride) + block * tokens + 2 * c;
#pragma unroll
  for (int first = 0; first < n_tiles; first += batch) {
    uint2 b[batch];
    float2 x[batch];
    int dot[matrices][batch][4];
#pragma unroll
    for (int n = 0; n < batch; ++n) {
      const uint8_t* const at = codes + (first + n) * 8 * stage_code_stride;
      if constexpr (Fragments::split_columns) {
        b[n].x = *reinterpret_cast<const uint32_t*>(at);
        b[n].y = *reinterpret_cast<const uint32_t*>(at + 16);
      } else {
        b[n] = *reinterpret_cast<const uint2*>(at);
      }
      x[n] = *reinterpret_cast<const float2*>(scales + (first + n) * 8);
    }
#pragma unroll
    for (int n = 0; n < batch; ++n) {
#pragma unroll
      for (int m = 0; m < matrices; ++m) mma_s8(dot[m][n], w[m].a, b[n], dot_start);
    }
#pragma unroll
    for (int n = 0; n < batch; ++n) {
#pragma unroll
      for (int m = 0; m < matrices; ++m) {
        scale_products<Fragments::has_min>(w[m], b[n], x[n], dot[m][n], sums[m][first + n]);
      }
    }
  }
}

template <TensorType type, uint32_t threads, int matrices, int n_tiles>
__device__ __forceinline__ void multiply_codes(const LaneRows (&rows)[matrices], const TileInputs& in,
                                               float (&sums)[matrices][n_tiles][4]) {
  using Fragments = CodeFragments<type>;
  constexpr int tokens = n_tiles * 8;
  constexpr uint32_t unit_blocks = Fragments::unit_blocks;
  constexpr uint32_t units_per_stage = stage_code_columns / 32 / unit_blocks;
  const uint32_t blocks = in.cols / 32, units = (blocks + unit_blocks - 1) / unit_blocks;
  typename Fragments::Raw raw[matrices];
#pragma unroll
  for (int m = 0; m < matrices; ++m) Fragments::load(raw[m], rows[m], 0, blocks);
  copy_code_stage<tokens, threads>(in, 0, in.stages);
  uint32_t unit = 0;
#pragma unroll 1
  for (uint32_t column = 0, buffer = 0; column < in.cols; column += stage_code_columns, buffer ^= 1) {
    wait_for_copies();
    __syncthreads();
    if (column + stage_code_columns < in.cols) {
      copy_code_stage<tokens, threads>(in, column + stage_code_columns,
                                       in.stages + (buffer ^ 1) * tokens * stage_bytes_per_token);
    }
    const uint8_t* const stage = in.stages + buffer * tokens * stage_bytes_per_token;
#pragma unroll 1
    for (uint32_t u = 0; u < units_per_stage && unit < units; ++u, ++unit) {
      typename Fragments::Raw next[matrices];
#pragma unroll
      for (int m = 0; m < matrices; ++m) {
        prefetch_unit<Fragments::unit_bytes>(rows[m], min(unit + units_ahead, units - 1));
        Fragments::load(next[m], rows[m], min(unit + 1, units - 1), blocks);
      }
#pragma unroll
      for (uint32_t j = 0; j < unit_blocks; ++j) {
        if (unit_blocks == 8 || unit * unit_blocks + j < blocks) {
          CodeBlock w[matrices];
#pragma unroll
          for (int m = 0; m < matrices; ++m) w[m] = Fragments::block(raw[m], j, in.tables);
          add_block<Fragments>(w, stage, u * unit_blocks + j, sums);
        }
      }
#pragma unroll
      for (int m = 0; m < matrices; ++m) raw[m] = next[m];
    }
  }
}

/// Adds the products of one step of 16 columns; `x` holds this lane's four activations.
template <bool has_minor>
__device__ __forceinline__ void add_split(const SplitWeights& w, float4 x, float (&sum)[4]) {
  uint32_t major[2], minor[2];
  split_bf16(x.x, x.y, major[0], minor[0]);
  split_bf16(x.z, x.w, major[1], minor[1]);
  if constexpr (has_minor) mma_bf16(sum, w.minor, major[0], major[1]);
  mma_bf16(sum, w.major, minor[0], minor[1]);
  mma_bf16(sum, w.major, major[0], major[1]);
}

template <TensorType type, uint32_t threads, int matrices, int n_tiles>
__device__ __forceinline__ void multiply_plain(const LaneRows (&rows)[matrices], const TileInputs& in,
                                               float (&sums)[matrices][n_tiles][4]) {
  using Fragments = PlainFragments<type>;
  constexpr int tokens = n_tiles * 8;
  constexpr uint32_t stage_steps = stage_plain_columns / 16;
  const uint32_t g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, steps = in.cols / 16;
  typename Fragments::Raw raw[matrices][stage_steps];
#pragma unroll
  for (int m = 0; m < matrices; ++m) {
#pragma unroll
    for (uint32_t s = 0; s < stage_steps; ++s) Fragments::load(raw[m][s], rows[m], min(s, steps - 1));
  }
  copy_plain_stage<tokens, threads>(in, 0, in.stages);
#pragma unroll 1
  for (uint32_t first = 0, buffer = 0; first < steps; first += stage_steps, buffer ^= 1) {
    wait_for_copies();
    __syncthreads();
    if (first + stage_steps < steps) {
      copy_plain_stage<tokens, threads>(in, (first + stage_steps) * 16,
                                        in.stages + (buffer ^ 1) * tokens * stage_bytes_per_token);
    }
    const uint8_t* const lane_inputs =
        in.stages + buffer * tokens * stage_bytes_per_token + g * stage_plain_stride + c * 16;
    float part[matrices][n_tiles][4] = {};
#pragma unroll
    for (uint32_t s = 0; s < stage_steps; ++s) {
      if (first + s >= steps) break;
      SplitWeights w[matrices];
#pragma unroll
      for (int m = 0; m < matrices; ++m) {
        w[m] = Fragments::split(raw[m][s]);
        Fragments::load(raw[m][s], rows[m], min(first + stage_steps + s, steps - 1));
      }
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
        const float4 x = *reinterpret_cast<const float4*>(lane_inputs + n * 8 * stage_plain_stride + s * 64);
#pragma unroll
        for (int m = 0; m < matrices; ++m) add_split<Fragments::has_minor>(w[m], x, part[m][n]);
      }
    }
#pragma unroll
    for (int m = 0; m < matrices; ++m) {
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = __fadd_rn(sums[m][n][i], part[m][n][i]);
      }
    }
  }
}

/// Every thread of the block (`threads` of them) calls this with the rows g and g + 8 of its warp; token_rows
/// are visible. sums[m][n]: rows and tokens as C of async_copy.cuh, tokens 8n ...
template <TensorType type, uint32_t threads, int matrices, int n_tiles>
__device__ __forceinline__ void multiply(const LaneRows (&rows)[matrices], const TileInputs& in,
                                         float (&sums)[matrices][n_tiles][4]) {
  if constexpr (is_plain(type)) {
    multiply_plain<type, threads>(rows, in, sums);
  } else {
    multiply_codes<type, threads>(rows, in, sums);
  }
}

/// Calls f with the type as a compile-time constant; the branch is the same for a whole block.
template <class F>
__device__ __forceinline__ void for_type(TensorType type, const F& f) {
  switch (type) {
    case TensorType::q8_0:
      return f(std::integral_constant<TensorType, TensorType::q8_0>{});
    case TensorType::iq2_xxs:
      return f(std::integral_constant<TensorType, TensorType::iq2_xxs>{});
    case TensorType::q2_k:
      return f(std::integral_constant<TensorType, TensorType::q2_k>{});
    case TensorType::q4_k:
      return f(std::integral_constant<TensorType, TensorType::q4_k>{});
    case TensorType::mxfp4:
      return f(std::integral_constant<TensorType, TensorType::mxfp4>{});
    case TensorType::f16:
      return f(std::integral_constant<TensorType, TensorType::f16>{});
    case TensorType::bf16:
      return f(std::integral_constant<TensorType, TensorType::bf16>{});
    default:
      return f(std::integral_constant<TensorType, TensorType::f32>{});
  }
}

/// Rows g and g + 8 from `first` on, the last row again beyond `end`.
template <TensorType type>
__device__ __forceinline__ LaneRows lane_rows(const DeviceMatrix& w, size_t first, size_t end) {
  const size_t row = first + threadIdx.x % 32 / 4;
  return {{weight_row<type>(w, min(row, end - 1)), weight_row<type>(w, min(row + 8, end - 1))}};
}

}  // namespace ds4::cuda
