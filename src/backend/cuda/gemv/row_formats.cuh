// How a lane reads, decodes and multiplies its chunk of a weight row, for every format.
//
// A chunk is the 16 bytes of the quants plane that one lane loads at once: 4 to 64 columns. Each format has
//   chunk_columns
//   Raw      load(row, chunk)              the bytes as loaded; no arithmetic, so that many loads can be in
//   flight Weights  decode(raw, chunk, tables)    int8 words and F32 scales, made once for all tokens Inputs
//   inputs(token, chunk)          the activations of one token for that chunk, made once for all rows float
//   accumulate(weights, inputs, sum)
// Integer dots are exact; every F32 step is an explicit intrinsic, so that no instantiation contracts
// differently.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device_types.hpp"
#include "backend/cuda/gemv/iq2_tables.cuh"

namespace ds4::cuda {

using format::TensorType;

/// One row of a matrix in its planes.
struct WeightRow {
  const uint8_t* quants;
  const uint8_t* scales;
  const uint8_t* extras;
};

/// One token's activations from the first column that the weights see.
struct InputRow {
  const float* f32;
  const int8_t* codes;
  const float* scales;
};

/// 16 bytes of weights: read once, so they do not displace the activations in L1.
__device__ __forceinline__ uint4 load_weights(const uint8_t* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

__device__ __forceinline__ uint16_t load_u16(const uint8_t* address) {
  return __ldg(reinterpret_cast<const unsigned short*>(address));
}

__device__ __forceinline__ float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

/// Small non-negative integers to F32, exact; the conversion instruction runs at a quarter of the rate.
__device__ __forceinline__ float code_to_float(uint32_t value) {
  return __fsub_rn(__uint_as_float(0x4b000000u | value), 8388608.0f);
}

/// Integer sums start from the bits of 1.5 * 2^23, so that turning |sum| < 2^22 into F32 is one subtraction.
inline constexpr int dot_start = 0x4b400000;
__device__ __forceinline__ float dot_value(int sum) {
  return __fsub_rn(__int_as_float(sum), 12582912.0f);
}

__device__ __forceinline__ int dot_16(const int* w, const int4& x, int sum) {
  sum = __dp4a(w[0], x.x, sum);
  sum = __dp4a(w[1], x.y, sum);
  sum = __dp4a(w[2], x.z, sum);
  return __dp4a(w[3], x.w, sum);
}

/// Adds the products of unsigned bytes and signed bytes.
__device__ __forceinline__ int dot_unsigned(uint32_t w, int x, int sum) {
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(w), "r"(x), "r"(sum));
  return result;
}

/// Sum of 16 codes, exact.
__device__ __forceinline__ float code_sum(const int4& x) {
  const int ones[4] = {0x01010101, 0x01010101, 0x01010101, 0x01010101};
  return dot_value(dot_16(ones, x, dot_start));
}

__device__ __forceinline__ int4 load_codes(const int8_t* codes) {
  return *reinterpret_cast<const int4*>(codes);
}

/// Raw form of formats with one F16 scale for a chunk.
struct ScaledChunk {
  uint4 q;
  uint16_t d;
};

template <TensorType type>
struct RowFormat;

template <>
struct RowFormat<TensorType::q8_0> {
  static constexpr uint32_t chunk_columns = 16;
  using Raw = ScaledChunk;
  struct Weights {
    int q[4];
    float d;
  };
  struct Inputs {
    int4 x;
    float d;
  };
  static __device__ __forceinline__ Raw load(const WeightRow& row, uint32_t chunk) {
    return {load_weights(row.quants + size_t{chunk} * 16), load_u16(row.scales + size_t{chunk / 2} * 2)};
  }
  static __device__ __forceinline__ Weights decode(const Raw& raw, uint32_t, const uint8_t*) {
    return {{static_cast<int>(raw.q.x), static_cast<int>(raw.q.y), static_cast<int>(raw.q.z),
             static_cast<int>(raw.q.w)},
            half_bits(raw.d)};
  }
  static __device__ __forceinline__ Inputs inputs(const InputRow& x, uint32_t chunk) {
    return {load_codes(x.codes + size_t{chunk} * 16), x.scales[chunk / 2]};
  }
  static __device__ __forceinline__ float accumulate(const Weights& w, const Inputs& x, float sum) {
    return __fmaf_rn(__fmul_rn(w.d, x.d), dot_value(dot_16(w.q, x.x, dot_start)), sum);
  }
};

template <>
struct RowFormat<TensorType::mxfp4> {
  static constexpr uint32_t chunk_columns = 32;
  struct Raw {
    uint4 q;
    uint8_t exponent;
  };
  struct Weights {
    int low[4], high[4];  // twice the values: elements 0..15 and 16..31
    float d;              // half the scale
  };
  struct Inputs {
    int4 low, high;
    float d;
  };
  static __device__ __forceinline__ Raw load(const WeightRow& row, uint32_t chunk) {
    return {load_weights(row.quants + size_t{chunk} * 16), __ldg(row.scales + chunk)};
  }
  /// 2^(e - 128); exponents 0 and 1 are subnormal, 255 is NaN.
  static __device__ __forceinline__ float half_scale(uint32_t e) {
    const uint32_t bits = e == 255 ? 0x7fc00000u : e >= 2 ? (e - 1) << 23 : 0x00200000u << e;
    return __uint_as_float(bits);
  }
  /// Magnitudes by a byte permutation whose selectors are the codes; negative ones from a second table where
  /// the sign bit of the code is set. A permutation leaves low and high nibbles interleaved; two more sort
  /// them.
  static __device__ __forceinline__ void expand(uint32_t q, int& low, int& high) {
    constexpr uint32_t t0 = 0x03020100u, t1 = 0x0c080604u, n0 = 0xfdfeff00u, n1 = 0xf4f8fafcu;
    const uint32_t s = q & 0x77777777u;
    const uint32_t p0 = permute_bytes(t0, t1, s), p1 = permute_bytes(t0, t1, s >> 16);
    const uint32_t m0 = permute_bytes(n0, n1, s), m1 = permute_bytes(n0, n1, s >> 16);
    const uint32_t low_mask = sign_mask(q << 4), high_mask = sign_mask(q);
    const uint32_t plus_low = __byte_perm(p0, p1, 0x6420), plus_high = __byte_perm(p0, p1, 0x7531);
    const uint32_t minus_low = __byte_perm(m0, m1, 0x6420), minus_high = __byte_perm(m0, m1, 0x7531);
    low = static_cast<int>((plus_low & ~low_mask) | (minus_low & low_mask));
    high = static_cast<int>((plus_high & ~high_mask) | (minus_high & high_mask));
  }
  /// 255 for every byte whose top bit is set.
  static __device__ __forceinline__ uint32_t sign_mask(uint32_t bytes) {
    uint32_t mask;
    asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(mask) : "r"(bytes));
    return mask;
  }
  static __device__ __forceinline__ Weights decode(const Raw& raw, uint32_t, const uint8_t*) {
    Weights w;
    expand(raw.q.x, w.low[0], w.high[0]);
    expand(raw.q.y, w.low[1], w.high[1]);
    expand(raw.q.z, w.low[2], w.high[2]);
    expand(raw.q.w, w.low[3], w.high[3]);
    w.d = half_scale(raw.exponent);
    return w;
  }
  static __device__ __forceinline__ Inputs inputs(const InputRow& x, uint32_t chunk) {
    const int8_t* codes = x.codes + size_t{chunk} * 32;
    return {load_codes(codes), load_codes(codes + 16), x.scales[chunk]};
  }
  static __device__ __forceinline__ float accumulate(const Weights& w, const Inputs& x, float sum) {
    const float dot = dot_value(dot_16(w.high, x.high, dot_16(w.low, x.low, dot_start)));
    return __fmaf_rn(__fmul_rn(w.d, x.d), dot, sum);
  }
};

template <>
struct RowFormat<TensorType::q4_k> {
  static constexpr uint32_t chunk_columns = 32;  // 16 of sub-block 2p and 16 of sub-block 2p + 1
  struct Raw {
    uint4 q;
    uint4 scales;
  };
  struct Weights {
    int q[2][4];
    float d[2], minus_min[2];
  };
  struct Inputs {
    int4 x[2];
    float d[2], sum[2];
  };
  static __device__ __forceinline__ Raw load(const WeightRow& row, uint32_t chunk) {
    return {load_weights(row.quants + size_t{chunk} * 16),
            __ldg(reinterpret_cast<const uint4*>(row.scales + size_t{chunk / 8} * 16))};
  }
  static __device__ __forceinline__ Weights decode(const Raw& raw, uint32_t chunk, const uint8_t*) {
    Weights w;
    const uint32_t words[4] = {raw.q.x, raw.q.y, raw.q.z, raw.q.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w.q[0][i] = static_cast<int>(words[i] & 0x0f0f0f0fu);
      w.q[1][i] = static_cast<int>(words[i] >> 4 & 0x0f0f0f0fu);
    }
    const float d = half_bits(raw.scales.x & 0xffffu), dmin = half_bits(raw.scales.x >> 16);
    // Bytes 0..3, 4..7, 8..11 of the packed scales; sub-blocks 2p and 2p + 1 are both below 4 or both above.
    const uint32_t a = raw.scales.y, b = raw.scales.z, c = raw.scales.w;
    const uint32_t p = chunk % 8 / 2, shift = p % 2 * 16;
    const uint32_t scales = p < 2 ? a & 0x3f3f3f3fu : (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
    const uint32_t mins = p < 2 ? b & 0x3f3f3f3fu : (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      w.d[i] = __fmul_rn(d, code_to_float(scales >> (shift + 8 * i) & 63u));
      w.minus_min[i] = -__fmul_rn(dmin, code_to_float(mins >> (shift + 8 * i) & 63u));
    }
    return w;
  }
  static __device__ __forceinline__ Inputs inputs(const InputRow& x, uint32_t chunk) {
    const uint32_t pair = chunk / 2;  // of sub-blocks: columns 64 * pair ...
    const int8_t* codes = x.codes + size_t{pair} * 64 + chunk % 2 * 16;
    Inputs in;
    in.x[0] = load_codes(codes);
    in.x[1] = load_codes(codes + 32);
    const float2 d = *reinterpret_cast<const float2*>(x.scales + size_t{pair} * 2);
    in.d[0] = d.x;
    in.d[1] = d.y;
    in.sum[0] = code_sum(in.x[0]);
    in.sum[1] = code_sum(in.x[1]);
    return in;
  }
  static __device__ __forceinline__ float accumulate(const Weights& w, const Inputs& x, float sum) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float dot = dot_value(dot_16(w.q[i], x.x[i], dot_start));
      sum = __fmaf_rn(x.d[i], __fmaf_rn(w.d[i], dot, __fmul_rn(w.minus_min[i], x.sum[i])), sum);
    }
    return sum;
  }
};

template <>
struct RowFormat<TensorType::q2_k> {
  static constexpr uint32_t chunk_columns = 64;  // 16 of every second sub-block of a half block
  struct Raw {
    uint4 q;
    uint2 scales;  // the eight of the half block
    uint32_t d;    // F16 d, F16 dmin
  };
  struct Weights {
    uint32_t q[4];  // codes of sub-block j are bits 2j, 2j + 1 of the bytes
    float d[4];     // divided by 4^j, since the codes are multiplied where they stand
    float minus_min[4];
  };
  struct Inputs {
    int4 x[4];
    float d[4], sum[4];
  };
  static __device__ __forceinline__ Raw load(const WeightRow& row, uint32_t chunk) {
    return {load_weights(row.quants + size_t{chunk} * 16),
            __ldg(reinterpret_cast<const uint2*>(row.scales + size_t{chunk / 2} * 8)),
            __ldg(reinterpret_cast<const uint32_t*>(row.extras + size_t{chunk / 4} * 4))};
  }
  static __device__ __forceinline__ Weights decode(const Raw& raw, uint32_t chunk, const uint8_t*) {
    Weights w = {{raw.q.x, raw.q.y, raw.q.z, raw.q.w}, {}, {}};
    const float d = half_bits(raw.d & 0xffffu), dmin = half_bits(raw.d >> 16);
    const uint32_t shift = chunk % 2 * 8;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t s = (j < 2 ? raw.scales.x : raw.scales.y) >> (shift + 16 * (j % 2));
      constexpr float inverse[4] = {1.0f, 0.25f, 0.0625f, 0.015625f};
      w.d[j] = __fmul_rn(__fmul_rn(d, inverse[j]), code_to_float(s & 15u));
      w.minus_min[j] = -__fmul_rn(dmin, code_to_float(s >> 4 & 15u));
    }
    return w;
  }
  static __device__ __forceinline__ Inputs inputs(const InputRow& x, uint32_t chunk) {
    const uint32_t half_block = chunk / 2;
    const int8_t* codes = x.codes + size_t{half_block} * 128 + chunk % 2 * 16;
    const float4 d = *reinterpret_cast<const float4*>(x.scales + size_t{half_block} * 4);
    Inputs in = {{}, {d.x, d.y, d.z, d.w}, {}};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      in.x[j] = load_codes(codes + 32 * j);
      in.sum[j] = code_sum(in.x[j]);
    }
    return in;
  }
  static __device__ __forceinline__ float accumulate(const Weights& w, const Inputs& x, float sum) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t mask = 0x03030303u << (2 * j);
      int sum_of_codes = dot_unsigned(w.q[0] & mask, x.x[j].x, dot_start);
      sum_of_codes = dot_unsigned(w.q[1] & mask, x.x[j].y, sum_of_codes);
      sum_of_codes = dot_unsigned(w.q[2] & mask, x.x[j].z, sum_of_codes);
      const float dot = dot_value(dot_unsigned(w.q[3] & mask, x.x[j].w, sum_of_codes));
      sum = __fmaf_rn(x.d[j], __fmaf_rn(w.d[j], dot, __fmul_rn(w.minus_min[j], x.sum[j])), sum);
    }
    return sum;
  }
};

template <>
struct RowFormat<TensorType::iq2_xxs> {
  static constexpr uint32_t chunk_columns = 64;  // two groups of 32
  using Raw = ScaledChunk;
  struct Weights {
    int q[2][8];
    float d[2];
  };
  struct Inputs {
    int4 x[4];
    float d[2];
  };
  static __device__ __forceinline__ Raw load(const WeightRow& row, uint32_t chunk) {
    return {load_weights(row.quants + size_t{chunk} * 16), load_u16(row.extras + size_t{chunk / 4} * 2)};
  }
  static __device__ __forceinline__ Weights decode(const Raw& raw, uint32_t, const uint8_t* tables) {
    Weights w;
    iq2_group(raw.q.x, raw.q.y, tables, w.q[0]);
    iq2_group(raw.q.z, raw.q.w, tables, w.q[1]);
    decode_scales(raw, w);
    return w;
  }
  /// From the pairs at a multiple of 64 KiB (iq2_group_at()).
  static __device__ __forceinline__ Weights decode_at(const Raw& raw, uint32_t lane_address) {
    Weights w;
    iq2_group_at(raw.q.x, raw.q.y, lane_address, w.q[0]);
    iq2_group_at(raw.q.z, raw.q.w, lane_address, w.q[1]);
    decode_scales(raw, w);
    return w;
  }
  static __device__ __forceinline__ void decode_scales(const Raw& raw, Weights& w) {
    const float d = __fmul_rn(half_bits(raw.d), 0.125f);
    w.d[0] = __fmul_rn(d, code_to_float(raw.q.y >> 27 | 1u));  // 2 s + 1
    w.d[1] = __fmul_rn(d, code_to_float(raw.q.w >> 27 | 1u));
  }
  static __device__ __forceinline__ Inputs inputs(const InputRow& x, uint32_t chunk) {
    const int8_t* codes = x.codes + size_t{chunk} * 64;
    const float2 d = *reinterpret_cast<const float2*>(x.scales + size_t{chunk} * 2);
    return {{load_codes(codes), load_codes(codes + 16), load_codes(codes + 32), load_codes(codes + 48)},
            {d.x, d.y}};
  }
  static __device__ __forceinline__ float accumulate(const Weights& w, const Inputs& x, float sum) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int dot = dot_16(w.q[i] + 4, x.x[2 * i + 1], dot_16(w.q[i], x.x[2 * i], dot_start));
      sum = __fmaf_rn(__fmul_rn(w.d[i], x.d[i]), dot_value(dot), sum);
    }
    return sum;
  }
};

/// F32, F16, BF16: plain matrices times F32 activations.
template <uint32_t columns>
struct PlainFormat {
  static constexpr uint32_t chunk_columns = columns;
  struct Raw {
    uint4 q;
  };
  struct Weights {
    float v[columns];
  };
  struct Inputs {
    float v[columns];
  };
  static __device__ __forceinline__ Raw load(const WeightRow& row, uint32_t chunk) {
    return {load_weights(row.quants + size_t{chunk} * 16)};
  }
  static __device__ __forceinline__ Inputs inputs(const InputRow& x, uint32_t chunk) {
    Inputs in;
#pragma unroll
    for (uint32_t i = 0; i < columns; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(x.f32 + size_t{chunk} * columns + i);
      in.v[i] = v.x;
      in.v[i + 1] = v.y;
      in.v[i + 2] = v.z;
      in.v[i + 3] = v.w;
    }
    return in;
  }
  static __device__ __forceinline__ float accumulate(const Weights& w, const Inputs& x, float sum) {
#pragma unroll
    for (uint32_t i = 0; i < columns; ++i) sum = __fmaf_rn(w.v[i], x.v[i], sum);
    return sum;
  }
};

template <>
struct RowFormat<TensorType::f32> : PlainFormat<4> {
  static __device__ __forceinline__ Weights decode(const Raw& raw, uint32_t, const uint8_t*) {
    return {{__uint_as_float(raw.q.x), __uint_as_float(raw.q.y), __uint_as_float(raw.q.z),
             __uint_as_float(raw.q.w)}};
  }
};

template <>
struct RowFormat<TensorType::f16> : PlainFormat<8> {
  static __device__ __forceinline__ Weights decode(const Raw& raw, uint32_t, const uint8_t*) {
    const uint32_t words[4] = {raw.q.x, raw.q.y, raw.q.z, raw.q.w};
    Weights w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w.v[2 * i] = half_bits(words[i] & 0xffffu);
      w.v[2 * i + 1] = half_bits(words[i] >> 16);
    }
    return w;
  }
};

template <>
struct RowFormat<TensorType::bf16> : PlainFormat<8> {
  static __device__ __forceinline__ Weights decode(const Raw& raw, uint32_t, const uint8_t*) {
    const uint32_t words[4] = {raw.q.x, raw.q.y, raw.q.z, raw.q.w};
    Weights w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w.v[2 * i] = __uint_as_float(words[i] << 16);
      w.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
    return w;
  }
};

/// Columns of a chunk, and the block size of the format, for host code.
__host__ __device__ constexpr uint32_t chunk_columns(TensorType type) {
  switch (type) {
    case TensorType::f32:
      return 4;
    case TensorType::f16:
    case TensorType::bf16:
      return 8;
    case TensorType::q8_0:
      return 16;
    case TensorType::mxfp4:
    case TensorType::q4_k:
      return 32;
    case TensorType::q2_k:
    case TensorType::iq2_xxs:
      return 64;
    default:
      return 0;
  }
}

}  // namespace ds4::cuda
