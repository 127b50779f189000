// How a lane decodes its 32 columns of a weight row to F16 tensor-core fragments, for every format.
//
// A step is 128 columns of a row; lane c (of four) owns its columns 32 c .. 32 c + 31 and decodes them in
// four octets. An octet e0 .. e7 gives the pairs {e0, e2}, {e1, e3}, {e4, e6}, {e5, e7}: the order of columns
// of half_expert_scratch.cuh. Each format has
//   staged                    codes come through shared memory, `row_bytes` of a row and step
//   pitch                     bytes from one staged row to the next, so that lanes do not meet in a bank
//   Loaded  load(...)         the scales as they lie in memory, a step ahead of their use
//   Block   prepare(...)      scales in F16, and codes
//   decode<octet>(block, ...) the four pairs
// Scales are rounded to F16 and limited so that weights are finite; then a weight is rounded once.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/device_types.hpp"
#include "backend/cuda/gemv/iq2_tables.cuh"

namespace ds4::cuda {

using format::TensorType;

/// A matrix of all experts.
struct ExpertWeights {
  const uint8_t* quants;
  const uint8_t* scales;
  const uint8_t* extras;
  uint32_t cols;
};

/// Integers 0 .. 1023 in the mantissas of 1024 .. 2047.
inline constexpr uint32_t half_integers = 0x64006400u;
inline constexpr uint32_t minus_half_integers = 0xe400e400u;

__device__ __forceinline__ __half2 half2_of(uint32_t pair) {
  return *reinterpret_cast<const __half2*>(&pair);
}
__device__ __forceinline__ uint32_t bits_of(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}
/// Each half to a magnitude of at most `most`; NaN stays.
__device__ __forceinline__ __half2 limited(__half2 pair, __half2 most) {
  return __hmin2_nan(__hmax2_nan(pair, __hneg2(most)), most);
}
/// Both halves, of a magnitude of at most `limit`.
__device__ __forceinline__ __half2 limited(float low, float high, float limit) {
  return limited(__floats2half2_rn(low, high), __float2half2_rn(limit));
}
/// Halves of at most 1023 as integers, times `scale`, of a magnitude of at most `limit`; exact but for one
/// rounding.
__device__ __forceinline__ __half2 scaled_integers(uint32_t integers, __half2 scale, float limit) {
  const __half2 values = __hadd2_rn(half2_of(integers | half_integers), half2_of(minus_half_integers));
  return limited(__hmul2_rn(values, scale), __float2half2_rn(limit));
}
/// (a & mask) | bits in one instruction.
__device__ __forceinline__ uint32_t mask_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(a), "r"(mask), "r"(bits));
  return out;
}
__device__ __forceinline__ void prefetch_l2(const uint8_t* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
/// 16 bytes of shared memory: a lane's codes of two octets, read when the first of them is decoded.
__device__ __forceinline__ uint4 load_staged(const uint8_t* address) {
  return *reinterpret_cast<const uint4*>(address);
}

template <TensorType type>
struct HalfFormat;

template <>
struct HalfFormat<TensorType::q8_0> {
  static constexpr bool staged = true;
  static constexpr uint32_t row_bytes = 128;
  static constexpr uint32_t pitch = 144;
  struct Loaded {
    unsigned short d;
  };
  struct Block {
    uint4 q;
    __half2 d;
  };
  /// Brings the scales of a step to L2.
  static __device__ __forceinline__ void prefetch(const ExpertWeights& w, uint32_t row, uint32_t step) {
    prefetch_l2(w.scales + (size_t{row} * (w.cols / 32) + 4 * step) * 2);
  }
  static __device__ __forceinline__ Loaded load(const ExpertWeights& w, uint32_t row, uint32_t step,
                                                uint32_t c) {
    const uint32_t blocks = w.cols / 32;
    const size_t block = size_t{row} * blocks + min(4 * step + c, blocks - 1);
    return {__ldg(reinterpret_cast<const unsigned short*>(w.scales) + block)};
  }
  static __device__ __forceinline__ void prepare(Block& b, const Loaded& loaded, const uint8_t*, uint32_t,
                                                 uint32_t) {
    b.d = limited(__half2half2(__ushort_as_half(loaded.d)), __float2half2_rn(511.0f));
  }
  template <uint32_t octet>
  static __device__ __forceinline__ void decode(Block& b, const uint8_t* row, uint32_t c, const uint8_t*,
                                                uint32_t (&out)[4]) {
    if constexpr (octet % 2 == 0) b.q = load_staged(row + 32 * c + 8 * octet);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word =
          (octet % 2 == 0 ? (i == 0 ? b.q.x : b.q.y) : (i == 0 ? b.q.z : b.q.w)) ^ 0x80808080u;
      const __half2 bias = half2_of(0xe480e480u);  // -(1024 + 128)
      const __half2 even = half2_of(permute_bytes(word, half_integers >> 8, 0x4240u));
      const __half2 odd = half2_of(permute_bytes(word, half_integers >> 8, 0x4341u));
      out[2 * i] = bits_of(__hmul2_rn(__hadd2_rn(even, bias), b.d));
      out[2 * i + 1] = bits_of(__hmul2_rn(__hadd2_rn(odd, bias), b.d));
    }
  }
};

template <>
struct HalfFormat<TensorType::mxfp4> {
  static constexpr bool staged = true;
  static constexpr uint32_t row_bytes = 64;
  static constexpr uint32_t pitch = 64;
  struct Loaded {
    uint8_t exponent;
  };
  struct Block {
    uint4 q;
    __half2 d;
  };
  /// Brings the scales of a step to L2.
  static __device__ __forceinline__ void prefetch(const ExpertWeights& w, uint32_t row, uint32_t step) {
    prefetch_l2(w.scales + size_t{row} * (w.cols / 32) + 4 * step);
  }
  static __device__ __forceinline__ Loaded load(const ExpertWeights& w, uint32_t row, uint32_t step,
                                                uint32_t c) {
    const uint32_t blocks = w.cols / 32;
    return {__ldg(w.scales + size_t{row} * blocks + min(4 * step + c, blocks - 1))};
  }
  /// 2^(e - 127), 0 for e = 0.
  static __device__ __forceinline__ void prepare(Block& b, const Loaded& loaded, const uint8_t* row,
                                                 uint32_t c, uint32_t) {
    const float d = __uint_as_float(uint32_t{loaded.exponent} << 23);
    b.d = limited(d, d, 8192.0f);
    b.q = load_staged(row + 16 * c);
  }
  /// Codes s e e m at bits `at` and at + 16 of `word`: the value times 2^-14 as F16, subnormal where e e = 0.
  template <int at>
  static __device__ __forceinline__ uint32_t value(uint32_t word, __half2 d) {
    const uint32_t magnitude = at <= 9 ? word << (9 - at) : word >> (at - 9);
    const uint32_t sign = word << (12 - at);
    const uint32_t bits = mask_or(magnitude, 0x0e000e00u, sign & 0x80008000u);
    return bits_of(__hmul2_rn(__hmul2_rn(half2_of(bits), half2_of(0x74007400u)), d));  // 2^14
  }
  /// Bytes hold element j in the low nibble, j + 16 in the high one.
  template <uint32_t octet>
  static __device__ __forceinline__ void decode(Block& b, const uint8_t*, uint32_t, const uint8_t*,
                                                uint32_t (&out)[4]) {
    constexpr int nibble = octet / 2 * 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = octet % 2 == 0 ? (i == 0 ? b.q.x : b.q.y) : (i == 0 ? b.q.z : b.q.w);
      out[2 * i] = value<nibble>(word, b.d);
      out[2 * i + 1] = value<nibble + 8>(word, b.d);
    }
  }
};

template <>
struct HalfFormat<TensorType::q4_k> {
  static constexpr bool staged = true;
  static constexpr uint32_t row_bytes = 64;
  static constexpr uint32_t pitch = 64;
  struct Loaded {
    uint4 scales;
  };
  struct Block {
    uint4 q;
    __half2 scale_min;  // d * scale, -dmin * min
  };
  /// Brings the scales of a step to L2.
  static __device__ __forceinline__ void prefetch(const ExpertWeights& w, uint32_t row, uint32_t step) {
    prefetch_l2(w.scales + (size_t{row} * (w.cols / 256) + step / 2) * 16);
  }
  static __device__ __forceinline__ Loaded load(const ExpertWeights& w, uint32_t row, uint32_t step,
                                                uint32_t) {
    const size_t block = size_t{row} * (w.cols / 256) + step / 2;
    return {__ldg(reinterpret_cast<const uint4*>(w.scales) + block)};
  }
  /// Sub-block c (even step) or 4 + c (odd step).
  static __device__ __forceinline__ void prepare(Block& b, const Loaded& loaded, const uint8_t*, uint32_t c,
                                                 uint32_t step) {
    const uint4 s = loaded.scales;
    const uint32_t at = 8 * c, low = s.y >> at, least_low = s.z >> at, high = s.w >> at;
    const bool odd = step % 2 != 0;
    const uint32_t scale = odd ? (high & 15u) | (low & 0xc0u) >> 2 : low & 63u;
    const uint32_t least = odd ? (high >> 4 & 15u) | (least_low & 0xc0u) >> 2 : least_low & 63u;
    b.scale_min = scaled_integers(scale | least << 16, half2_of(s.x ^ 0x80000000u), 2000.0f);
  }
  template <uint32_t octet>
  static __device__ __forceinline__ void decode(Block& b, const uint8_t* row, uint32_t c, const uint8_t*,
                                                uint32_t (&out)[4]) {
    if constexpr (octet % 2 == 0) {
      b.q = load_staged(row + c / 2 * 32 + 8 * octet);
    }
    const uint32_t shift = c % 2 * 4;
    const __half2 scale = __low2half2(b.scale_min), least = __high2half2(b.scale_min);
    const __half2 bias = half2_of(0xe400e400u);  // -1024
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = octet % 2 == 0 ? (i == 0 ? b.q.x : b.q.y) : (i == 0 ? b.q.z : b.q.w);
      const uint32_t even = mask_or(word >> shift, 0x000f000fu, half_integers);
      const uint32_t odd = mask_or(word >> (shift + 8), 0x000f000fu, half_integers);
      out[2 * i] = bits_of(__hfma2(__hadd2_rn(half2_of(even), bias), scale, least));
      out[2 * i + 1] = bits_of(__hfma2(__hadd2_rn(half2_of(odd), bias), scale, least));
    }
  }
};

template <>
struct HalfFormat<TensorType::q2_k> {
  static constexpr bool staged = true;
  static constexpr uint32_t row_bytes = 32;
  static constexpr uint32_t pitch = 48;
  struct Loaded {
    unsigned short scales;  // of the lane's two sub-blocks of 16
    uint32_t d;
  };
  struct Block {
    uint4 q;
    __half2 scale_min[2];  // d * scale, -dmin * min
  };
  /// Brings the scales of a step to L2.
  static __device__ __forceinline__ void prefetch(const ExpertWeights& w, uint32_t row, uint32_t step) {
    const size_t block = size_t{row} * (w.cols / 256) + step / 2;
    prefetch_l2(w.scales + block * 16);
    prefetch_l2(w.extras + block * 4);
  }
  static __device__ __forceinline__ Loaded load(const ExpertWeights& w, uint32_t row, uint32_t step,
                                                uint32_t c) {
    const size_t block = size_t{row} * (w.cols / 256) + step / 2;
    const uint8_t* const scales = w.scales + block * 16 + step % 2 * 8 + 2 * c;
    return {__ldg(reinterpret_cast<const unsigned short*>(scales)),
            __ldg(reinterpret_cast<const uint32_t*>(w.extras) + block)};
  }
  static __device__ __forceinline__ void prepare(Block& b, const Loaded& loaded, const uint8_t*, uint32_t,
                                                 uint32_t) {
    const uint32_t s = loaded.scales;
    const __half2 d = half2_of(loaded.d ^ 0x80000000u);
    b.scale_min[0] = scaled_integers((s | s << 12) & 0x000f000fu, d, 10000.0f);
    b.scale_min[1] = scaled_integers((s >> 8 | s << 4) & 0x000f000fu, d, 10000.0f);
  }
  /// Byte j of a row and step holds columns j, j + 32, j + 64, j + 96, two bits each: c is the place.
  template <uint32_t octet>
  static __device__ __forceinline__ void decode(Block& b, const uint8_t* row, uint32_t c, const uint8_t*,
                                                uint32_t (&out)[4]) {
    if constexpr (octet % 2 == 0) b.q = load_staged(row + 8 * octet);
    const __half2 scale = __low2half2(b.scale_min[octet / 2]), least = __high2half2(b.scale_min[octet / 2]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = (octet % 2 == 0 ? (i == 0 ? b.q.x : b.q.y) : (i == 0 ? b.q.z : b.q.w)) >> (2 * c);
      // 1024 + q, and 1024 + 256 q.
      const __half2 even = half2_of(mask_or(word, 0x00030003u, half_integers));
      const __half2 odd = half2_of(mask_or(word, 0x03000300u, half_integers));
      const __half2 even_code = __hadd2_rn(even, half2_of(0xe400e400u));
      const __half2 odd_code = __hfma2(odd, half2_of(0x1c001c00u), half2_of(0xc400c400u));  // 1 / 256, -4
      out[2 * i] = bits_of(__hfma2(even_code, scale, least));
      out[2 * i + 1] = bits_of(__hfma2(odd_code, scale, least));
    }
  }
};

/// Tables of IQ2_XXS, look-ups of eight lanes at a time without conflicts. At byte 256 e + 16 l lies copy l
/// of grid entry e: its eight levels (1, 3.125, 5.375) as the four pairs above. At 256 e + 128 + 4 l lies
/// copy l of sign pattern e mod 128: the signs of pair i are bits 15 - i and 31 - i. Every thread of the
/// block calls this, then the block synchronises.
inline constexpr size_t iq2_half_tables_bytes = 256 * 256;
__device__ inline void fill_iq2_half_tables(uint8_t* tables) {
  for (uint32_t at = threadIdx.x; at < 256 * 16; at += blockDim.x) {
    const uint32_t entry = at / 16, levels = iq2_grid[entry], sign_nibbles = iq2_sign_nibbles(entry % 128);
    uint32_t pairs[4], signs = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t first = i / 2 * 4 + i % 2, shifts[2] = {4 * first, 4 * first + 8};
      pairs[i] = 0;
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const uint32_t level = levels >> shifts[j] & 15u;
        pairs[i] |= (level == 0 ? 0x3c00u : level == 1 ? 0x4240u : 0x4560u) << (16 * j);
        signs |= (sign_nibbles >> (shifts[j] + 2) & 1u) << (15 - i + 16 * j);
      }
    }
    reinterpret_cast<uint4*>(tables)[at] = at % 16 < 8 ? make_uint4(pairs[0], pairs[1], pairs[2], pairs[3])
                                                       : make_uint4(signs, signs, signs, signs);
  }
}

template <>
struct HalfFormat<TensorType::iq2_xxs> {
  static constexpr bool staged = true;
  static constexpr uint32_t row_bytes = 32;
  static constexpr uint32_t pitch = 32;
  struct Loaded {
    unsigned short d;
  };
  struct Block {
    uint2 q;  // indices, signs and scale
    __half2 d;
  };
  /// Brings the scales of a step to L2.
  static __device__ __forceinline__ void prefetch(const ExpertWeights& w, uint32_t row, uint32_t step) {
    prefetch_l2(w.extras + (size_t{row} * (w.cols / 256) + step / 2) * 2);
  }
  static __device__ __forceinline__ Loaded load(const ExpertWeights& w, uint32_t row, uint32_t step,
                                                uint32_t) {
    const size_t block = size_t{row} * (w.cols / 256) + step / 2;
    return {__ldg(reinterpret_cast<const unsigned short*>(w.extras) + block)};
  }
  /// d (2 s + 1) times levels 1, 3.125, 5.375.
  static __device__ __forceinline__ void prepare(Block& b, const Loaded& loaded, const uint8_t* row,
                                                 uint32_t c, uint32_t) {
    b.q = *reinterpret_cast<const uint2*>(row + 8 * c);
    const uint32_t odd = b.q.y >> 27 | 1u;
    b.d = scaled_integers(odd | odd << 16, __half2half2(__ushort_as_half(loaded.d)), 12000.0f);
  }
  template <uint32_t octet>
  static __device__ __forceinline__ void decode(Block& b, const uint8_t*, uint32_t, const uint8_t* tables,
                                                uint32_t (&out)[4]) {
    constexpr uint32_t select = 0x5504u | octet << 4;
    const uint32_t lane = threadIdx.x % 32;
    const uint4 grid = *reinterpret_cast<const uint4*>(tables + permute_bytes(b.q.x, lane % 8 * 16, select));
    const uint32_t signs =
        *reinterpret_cast<const uint32_t*>(tables + 128 + permute_bytes(b.q.y << octet, lane * 4, select));
    const uint32_t words[4] = {grid.x, grid.y, grid.z, grid.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[i] = bits_of(__hmul2_rn(half2_of(words[i] ^ (signs << i & 0x80008000u)), b.d));
    }
  }
};

/// F32, F16, BF16: octets straight from memory.
template <TensorType type>
struct PlainHalfFormat {
  static constexpr bool staged = false;
  static constexpr uint32_t row_bytes = 0;
  static constexpr uint32_t pitch = 0;
  static constexpr uint32_t octet_bytes = type == TensorType::f32 ? 32 : 16;
  struct Loaded {
    const uint8_t* columns;
  };
  struct Block {
    const uint8_t* columns;
  };
  static __device__ __forceinline__ Loaded load(const ExpertWeights& w, uint32_t row, uint32_t step,
                                                uint32_t c) {
    const uint32_t blocks = w.cols / 32;
    const size_t block = size_t{row} * blocks + min(4 * step + c, blocks - 1);
    return {w.quants + block * 4 * octet_bytes};
  }
  static __device__ __forceinline__ void prepare(Block& b, const Loaded& loaded, const uint8_t*, uint32_t,
                                                 uint32_t) {
    b.columns = loaded.columns;
  }
  static __device__ __forceinline__ uint32_t pack(uint32_t low, uint32_t high) {
    return bits_of(limited(__uint_as_float(low), __uint_as_float(high), 65504.0f));
  }
  template <uint32_t octet>
  static __device__ __forceinline__ void decode(Block& b, const uint8_t*, uint32_t, const uint8_t*,
                                                uint32_t (&out)[4]) {
    const uint4* const from = reinterpret_cast<const uint4*>(b.columns + octet * octet_bytes);
    if constexpr (type == TensorType::f32) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 v = __ldg(from + i);
        out[2 * i] = pack(v.x, v.z);
        out[2 * i + 1] = pack(v.y, v.w);
      }
    } else {
      const uint4 v = __ldg(from);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t a = i == 0 ? v.x : v.z, b2 = i == 0 ? v.y : v.w;
        if constexpr (type == TensorType::f16) {
          out[2 * i] = __byte_perm(a, b2, 0x5410);
          out[2 * i + 1] = __byte_perm(a, b2, 0x7632);
        } else {
          out[2 * i] = pack(a << 16, b2 << 16);
          out[2 * i + 1] = pack(a & 0xffff0000u, b2 & 0xffff0000u);
        }
      }
    }
  }
};

template <>
struct HalfFormat<TensorType::f32> : PlainHalfFormat<TensorType::f32> {};
template <>
struct HalfFormat<TensorType::f16> : PlainHalfFormat<TensorType::f16> {};
template <>
struct HalfFormat<TensorType::bf16> : PlainHalfFormat<TensorType::bf16> {};

}  // namespace ds4::cuda
