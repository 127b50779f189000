// How a lane loads and decodes its part of 16 weight rows straight into tensor-core fragments.
//
// The order of columns inside a product of 32 is free as long as weights and activations agree: lane l with
// c = l mod 4 takes columns 8c .. 8c + 7 of each block of 32 (k 4c and k 4c + 16 of the instruction), of rows
// g = l / 4 and g + 8. So a lane decodes eight neighbouring weights, which is one entry of the IQ2_XXS grid
// or eight bytes of any other format, and nothing passes through shared memory. Each format has
//   unit_blocks               blocks of 32 columns that are loaded at once
//   unit_bytes                of the quants plane in a unit of a row
//   split_columns             columns 4c .. 4c + 3 and 16 + 4c ... instead: low and high nibbles of MXFP4
//   Raw   load(...)           bytes of a unit; no arithmetic
//   Block block<j>(raw, ...)  block j of the unit: int8 codes and F32 scales
#pragma once

#include "backend/cuda/gemv/row_dot.cuh"
#include "backend/cuda/ptx/mma.cuh"

namespace ds4::cuda {

/// Codes of rows g and g + 8 in fragment order, and their scales. With a minimum the weight is
/// d * code - dmin * min, where min[r] repeats one byte.
struct CodeBlock {
  uint32_t a[4];
  float d[2];
  uint32_t min[2];
  float minus_dmin[2];
};

/// The rows g and g + 8 of a lane.
struct LaneRows {
  WeightRow row[2];
};

__device__ __forceinline__ uint32_t lane_column() {
  return threadIdx.x % 4;
}

/// `value` of the lane that has c = `column` and the same rows.
__device__ __forceinline__ uint32_t from_column(uint32_t value, uint32_t column) {
  return __shfl_sync(~0u, value, static_cast<int>(column), 4);
}

__device__ __forceinline__ uint2 load_8(const uint8_t* address) {
  return __ldg(reinterpret_cast<const uint2*>(address));
}

/// Brings the quants of a unit of the 16 rows of a warp to L2.
template <uint32_t unit_bytes>
__device__ __forceinline__ void prefetch_unit(const LaneRows& rows, uint32_t unit) {
  const uint32_t c = lane_column();
  const uint8_t* const quants = c < 2 ? rows.row[0].quants : rows.row[1].quants;
  asm volatile(
      "prefetch.global.L2 [%0];" ::"l"(quants + size_t{unit} * unit_bytes + c % 2 * (unit_bytes / 2)));
}

/// `value` below 2^23, without the slow conversion instruction.
__device__ __forceinline__ float code_value(uint32_t value) {
  return __fsub_rn(__uint_as_float(value | 0x4b000000u), 8388608.0f);
}

template <TensorType type>
struct CodeFragments;

template <>
struct CodeFragments<TensorType::q8_0> {
  static constexpr uint32_t unit_blocks = 4;
  static constexpr uint32_t unit_bytes = 128;
  static constexpr bool split_columns = false;
  static constexpr bool has_min = false;
  struct Raw {
    uint2 q[4][2];
    uint32_t d[2];  // of block c
  };
  static __device__ __forceinline__ void load(Raw& raw, const LaneRows& rows, uint32_t unit,
                                              uint32_t blocks) {
    const uint32_t c = lane_column(), first = unit * unit_blocks;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        raw.q[j][r] = load_8(rows.row[r].quants + size_t{min(first + j, blocks - 1)} * 32 + 8 * c);
      }
      raw.d[r] = load_u16(rows.row[r].scales + size_t{min(first + c, blocks - 1)} * 2);
    }
  }
  static __device__ __forceinline__ CodeBlock block(const Raw& raw, uint32_t j, const uint8_t*) {
    CodeBlock b = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      b.a[r] = raw.q[j][r].x;
      b.a[r + 2] = raw.q[j][r].y;
      b.d[r] = half_bits(from_column(raw.d[r], j));
    }
    return b;
  }
};

template <>
struct CodeFragments<TensorType::mxfp4> {
  static constexpr uint32_t unit_blocks = 4;
  static constexpr uint32_t unit_bytes = 64;
  static constexpr bool split_columns = true;
  static constexpr bool has_min = false;
  struct Raw {
    uint32_t q[4][2];
    uint32_t exponent[2];  // of block c
  };
  static __device__ __forceinline__ void load(Raw& raw, const LaneRows& rows, uint32_t unit,
                                              uint32_t blocks) {
    const uint32_t c = lane_column(), first = unit * unit_blocks;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        raw.q[j][r] = __ldg(reinterpret_cast<const uint32_t*>(
            rows.row[r].quants + size_t{min(first + j, blocks - 1)} * 16 + 4 * c));
      }
      raw.exponent[r] = __ldg(rows.row[r].scales + min(first + c, blocks - 1));
    }
  }
  static __device__ __forceinline__ CodeBlock block(const Raw& raw, uint32_t j, const uint8_t*) {
    using Row = RowFormat<TensorType::mxfp4>;
    CodeBlock b = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int low, high;
      Row::expand(raw.q[j][r], low, high);
      b.a[r] = static_cast<uint32_t>(low);
      b.a[r + 2] = static_cast<uint32_t>(high);
      b.d[r] = Row::half_scale(from_column(raw.exponent[r], j));
    }
    return b;
  }
};

template <>
struct CodeFragments<TensorType::q4_k> {
  static constexpr uint32_t unit_blocks = 8;
  static constexpr uint32_t unit_bytes = 128;
  static constexpr bool split_columns = false;
  static constexpr bool has_min = true;
  struct Raw {
    uint2 q[4][2];  // blocks 2p (low nibbles) and 2p + 1
    uint4 scales[2];
  };
  static __device__ __forceinline__ void load(Raw& raw, const LaneRows& rows, uint32_t unit, uint32_t) {
    const uint32_t c = lane_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (uint32_t p = 0; p < 4; ++p) {
        raw.q[p][r] = load_8(rows.row[r].quants + size_t{unit} * 128 + p * 32 + 8 * c);
      }
      raw.scales[r] = __ldg(reinterpret_cast<const uint4*>(rows.row[r].scales + size_t{unit} * 16));
    }
  }
  static __device__ __forceinline__ CodeBlock block(const Raw& raw, uint32_t j, const uint8_t*) {
    CodeBlock b;
    const uint32_t shift = j % 2 * 4, at = j % 4 * 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      b.a[r] = raw.q[j / 2][r].x >> shift & 0x0f0f0f0fu;
      b.a[r + 2] = raw.q[j / 2][r].y >> shift & 0x0f0f0f0fu;
      const uint4 s = raw.scales[r];
      const uint32_t scale = j < 4 ? s.y >> at & 63u : (s.w >> at & 15u) | (s.y >> at & 0xc0u) >> 2;
      const uint32_t least = j < 4 ? s.z >> at & 63u : (s.w >> (at + 4) & 15u) | (s.z >> at & 0xc0u) >> 2;
      b.d[r] = __fmul_rn(half_bits(s.x & 0xffffu), code_value(scale));
      b.min[r] = least * 0x01010101u;
      b.minus_dmin[r] = -half_bits(s.x >> 16);
    }
    return b;
  }
};

/// The 4-bit scale of 16 columns goes into their codes: at most 3 * 15.
template <>
struct CodeFragments<TensorType::q2_k> {
  static constexpr uint32_t unit_blocks = 8;
  static constexpr uint32_t unit_bytes = 64;
  static constexpr bool split_columns = false;
  static constexpr bool has_min = true;
  struct Raw {
    uint2 q[2][2];  // blocks 4h .. 4h + 3: two bits each
    uint4 scales[2];
    uint32_t d[2];
  };
  static __device__ __forceinline__ void load(Raw& raw, const LaneRows& rows, uint32_t unit, uint32_t) {
    const uint32_t c = lane_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        raw.q[h][r] = load_8(rows.row[r].quants + size_t{unit} * 64 + h * 32 + 8 * c);
      }
      raw.scales[r] = __ldg(reinterpret_cast<const uint4*>(rows.row[r].scales + size_t{unit} * 16));
      raw.d[r] = __ldg(reinterpret_cast<const uint32_t*>(rows.row[r].extras + size_t{unit} * 4));
    }
  }
  static __device__ __forceinline__ CodeBlock block(const Raw& raw, uint32_t j, const uint8_t*) {
    CodeBlock b;
    const uint32_t shift = lane_column() / 2 * 8 + j % 2 * 16;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 all = raw.scales[r];
      const uint32_t s = (j < 2 ? all.x : j < 4 ? all.y : j < 6 ? all.z : all.w) >> shift;
      b.a[r] = (raw.q[j / 4][r].x >> (j % 4 * 2) & 0x03030303u) * (s & 15u);
      b.a[r + 2] = (raw.q[j / 4][r].y >> (j % 4 * 2) & 0x03030303u) * (s & 15u);
      b.d[r] = half_bits(raw.d[r] & 0xffffu);
      b.min[r] = (s >> 4 & 15u) * 0x01010101u;
      b.minus_dmin[r] = -half_bits(raw.d[r] >> 16);
    }
    return b;
  }
};

template <>
struct CodeFragments<TensorType::iq2_xxs> {
  static constexpr uint32_t unit_blocks = 8;
  static constexpr uint32_t unit_bytes = 64;
  static constexpr bool split_columns = false;
  static constexpr bool has_min = false;
  struct Raw {
    uint4 q[2];  // blocks 2c and 2c + 1
    uint32_t d[2];
  };
  static __device__ __forceinline__ void load(Raw& raw, const LaneRows& rows, uint32_t unit, uint32_t) {
    const uint32_t c = lane_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      raw.q[r] = load_weights(rows.row[r].quants + size_t{unit} * 64 + 16 * c);
      raw.d[r] = load_u16(rows.row[r].extras + size_t{unit} * 2);
    }
  }
  static __device__ __forceinline__ CodeBlock block(const Raw& raw, uint32_t j, const uint8_t* tables) {
    CodeBlock b = {};
    const uint32_t c = lane_column(), copy = threadIdx.x % 32 * 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t indices = from_column(j % 2 == 0 ? raw.q[r].x : raw.q[r].z, j / 2);
      const uint32_t signs = from_column(j % 2 == 0 ? raw.q[r].y : raw.q[r].w, j / 2);
      // Rotated so that the index stands at bit 7, above the byte of the lane's copy.
      const uint32_t grid_at = (__funnelshift_l(indices, indices, 7 - 8 * c) & 0x7f80u) | copy;
      const uint32_t sign_at = (__funnelshift_l(signs, signs, 7 - 7 * c) & 0x3f80u) | copy;
      const uint32_t selectors = *reinterpret_cast<const uint32_t*>(tables + grid_at) ^
                                 *reinterpret_cast<const uint32_t*>(tables + iq2_sign_table_at + sign_at);
      b.a[r] = permute_bytes(0x002b1908u, 0x00d5e7f8u, selectors);
      b.a[r + 2] = permute_bytes(0x002b1908u, 0x00d5e7f8u, selectors >> 16);
      const float d = __fmul_rn(half_bits(raw.d[r]), 0.125f);
      b.d[r] = __fmul_rn(d, code_value(signs >> 27 | 1u));  // 2 s + 1
    }
    return b;
  }
};

/// Weights of 16 columns as a sum of two BF16 fragments: lane c takes columns 4c .. 4c + 3.
struct SplitWeights {
  uint32_t major[4], minor[4];
};

template <TensorType type>
struct PlainFragments {
  static constexpr bool is_f32 = type == TensorType::f32;
  static constexpr bool has_minor = type != TensorType::bf16;
  struct Raw {
    uint2 low[2], high[2];  // `high` for F32 only
  };
  /// Columns 16 * step ... of the rows.
  static __device__ __forceinline__ void load(Raw& raw, const LaneRows& rows, uint32_t step) {
    const uint32_t c = lane_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (is_f32) {
        const uint4 v =
            __ldg(reinterpret_cast<const uint4*>(rows.row[r].quants + size_t{step} * 64 + 16 * c));
        raw.low[r] = make_uint2(v.x, v.y);
        raw.high[r] = make_uint2(v.z, v.w);
      } else {
        raw.low[r] = load_8(rows.row[r].quants + size_t{step} * 32 + 8 * c);
      }
    }
  }
  static __device__ __forceinline__ void split_half(uint32_t pair, uint32_t& major, uint32_t& minor) {
    split_bf16(half_bits(pair & 0xffffu), half_bits(pair >> 16), major, minor);
  }
  static __device__ __forceinline__ SplitWeights split(const Raw& raw) {
    SplitWeights w = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (is_f32) {
        split_bf16(__uint_as_float(raw.low[r].x), __uint_as_float(raw.low[r].y), w.major[r], w.minor[r]);
        split_bf16(__uint_as_float(raw.high[r].x), __uint_as_float(raw.high[r].y), w.major[r + 2],
                   w.minor[r + 2]);
      } else if constexpr (type == TensorType::f16) {
        split_half(raw.low[r].x, w.major[r], w.minor[r]);
        split_half(raw.low[r].y, w.major[r + 2], w.minor[r + 2]);
      } else {
        w.major[r] = raw.low[r].x;
        w.major[r + 2] = raw.low[r].y;
      }
    }
    return w;
  }
};

}  // namespace ds4::cuda
