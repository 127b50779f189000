// Packed attention rows (584 bytes) and index rows (68 bytes): encode by one warp, decode in registers.
//
// What: the device side of format/fp8_row and format/fp4_row, bit for bit the same codes for the same F32
// input. Layout: docs/model.md §3.3 and §3.4; attention row = 448 E4M3, 7 E8M0, one zero, 64 F16; index row =
// 64 bytes of
//   E2M1 pairs (elements j and j + 16 of a block of 32 share byte j), 4 E8M0.
// Preconditions: all 32 lanes call; attention rows lie on 8 bytes, index rows on 4.
// Bytes and FLOPs: an attention row is 2048 B in, 584 B out and 7 maxima over the warp; an index row 35
// shuffles. Why this shape: a lane owns two neighbours of every block of 64, so that codes leave as one
// 64-byte store a block.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/device/magnitude.cuh"
#include "backend/cuda/device_types.hpp"
#include "backend/cuda/ptx/mma.cuh"

namespace ds4::cuda {

inline constexpr int attention_exponents_offset = 448;
inline constexpr int attention_tail_offset = 456;
inline constexpr int index_exponents_offset = 64;

/// 2^(exponent - 127); 255 is NaN.
__device__ inline float e8m0_value(uint32_t exponent) {
  if (exponent == 0) return __uint_as_float(0x00400000u);
  return exponent == 255 ? __uint_as_float(0x7fc00000u) : __uint_as_float(exponent << 23);
}

/// The exponent of the smallest power of two that is not below `ratio`.
__device__ inline uint32_t rounded_up_exponent(float ratio) {
  const uint32_t bits = __float_as_uint(ratio);
  return (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
}

/// To nearest, ties to the even code; magnitudes above 448 become 448. NaN stays NaN.
__device__ inline uint32_t e4m3_code(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;
  if (magnitude < 0x3c800000u) {
    // Adding 2^14 leaves the multiple of 2^-9 in the low mantissa bits, rounded by the hardware.
    return sign | (__float_as_uint(__fadd_rn(__uint_as_float(magnitude), 16384.0f)) - 0x46800000u);
  }
  magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
  return sign | ((magnitude >> 20) - (120u << 3));
}

/// To nearest, ties to even; every NaN becomes the quiet NaN without payload, as format::f32_to_f16 does.
__device__ inline uint32_t f16_bits(float value) {
  if (isnan(value)) return (__float_as_uint(value) >> 16 & 0x8000u) | 0x7e00u;
  return __half_as_ushort(__float2half_rn(value));
}

/// To nearest, ties to the even code; magnitudes above 6 and NaN become 6.
__device__ inline uint32_t e2m1_code(float value) {
  const uint32_t sign = __float_as_uint(value) >> 28 & 8u;
  const float x = fabsf(value);
  const uint32_t code = x <= 0.25f   ? 0u
                        : x < 0.75f  ? 1u
                        : x <= 1.25f ? 2u
                        : x < 1.75f  ? 3u
                        : x <= 2.5f  ? 4u
                        : x < 3.5f   ? 5u
                        : x <= 5.0f  ? 6u
                                     : 7u;
  return sign | code;
}

__device__ inline float e2m1_value(uint32_t code) {
  const uint32_t magnitude = code & 7u;
  const float x = magnitude < 2 ? 0.5f * magnitude : __uint_as_float((magnitude << 22) + (126u << 23));
  return (code & 8u) != 0 ? -x : x;
}

/// The value of e2m1_code(value).
__device__ inline float e2m1_round(float value) {
  const float x = fabsf(value);
  // Adding 1.5 * 2^22 leaves multiples of 0.5, rounded by the hardware; codes are that far apart below 2.
  const float large = x < 2.0f ? 6291456.0f : x < 4.0f ? 12582912.0f : 25165824.0f;
  return copysignf(fminf(__fsub_rn(__fadd_rn(x, large), large), 6.0f), value);
}

/// The scale a block's largest magnitude asks for (4 bits of E8M0 are never above 254 for finite input).
__device__ inline uint32_t index_exponent(float largest) {
  return min(rounded_up_exponent(__fdiv_rn(fmaxf(largest, 6.0f * 0x1p-126f), 6.0f)), 255u);
}

/// One warp packs a row of 512 values (after RoPE; shared or global memory) into 584 bytes. A block with NaN
/// gets the exponent 255, which is NaN.
__device__ inline void encode_attention_row(const float* row, uint8_t* out, int lane) {
  for (int block = 0; block < 7; ++block) {
    const float x = row[block * 64 + 2 * lane], y = row[block * 64 + 2 * lane + 1];
    const uint32_t largest =
        __reduce_max_sync(0xffffffffu, max(max(magnitude_bits(1e-4f), magnitude_bits(x)), magnitude_bits(y)));
    const uint32_t exponent = rounded_up_exponent(__fmul_rn(__uint_as_float(largest), 1.0f / 448.0f));
    const float inverse = e8m0_value(254u - min(exponent, 254u));
    const uint32_t codes = e4m3_code(__fmul_rn(x, inverse)) | e4m3_code(__fmul_rn(y, inverse)) << 8;
    *reinterpret_cast<uint16_t*>(out + block * 64 + 2 * lane) = static_cast<uint16_t>(codes);
    if (lane == 0) out[attention_exponents_offset + block] = static_cast<uint8_t>(min(exponent, 255u));
  }
  if (lane == 0) out[attention_exponents_offset + 7] = 0;
  *reinterpret_cast<uint32_t*>(out + attention_tail_offset + 4 * lane) =
      f16_bits(row[448 + 2 * lane]) | f16_bits(row[448 + 2 * lane + 1]) << 16;
}

/// One warp unpacks a row to F32; lane l writes elements l, l + 32, ...
__device__ inline void decode_attention_row(const uint8_t* row, float* out, int lane) {
  for (int i = lane; i < 448; i += 32) {
    const uint32_t code = row[i];
    const float unscaled = __uint_as_float((code & 0x7fu) << 20 | (code & 0x80u) << 24) * 0x1p120f;
    out[i] = unscaled * e8m0_value(row[attention_exponents_offset + i / 64]);
  }
  const __half* tail = reinterpret_cast<const __half*>(row + attention_tail_offset);
  for (int i = lane; i < 64; i += 32) out[448 + i] = __half2float(tail[i]);
}

/// Hadamard transform of 128 values, lane l holding elements 4l .. 4l + 3. The order of additions is that of
/// format::hadamard_128.
__device__ inline void hadamard_128(float (&v)[4], int lane) {
  const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c;
  v[1] = b + d;
  v[2] = a - c;
  v[3] = b - d;
  for (int step = 1; step < 32; step *= 2) {
    for (float& x : v) {
      const float other = __shfl_xor_sync(0xffffffffu, x, step);
      x = (lane & step) == 0 ? x + other : other - x;
    }
  }
  for (float& x : v) x = __fmul_rn(x, 0.08838834764831845f);
}

/// Largest magnitude of the block of 32 that the lane belongs to (8 lanes of 4 values).
__device__ inline float index_block_largest(const float (&v)[4]) {
  float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
  for (int step = 4; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  return largest;
}

/// One warp transforms and packs an index row; v as in hadamard_128, after RoPE.
__device__ inline void encode_index_row(float (&v)[4], uint8_t* out, int lane) {
  hadamard_128(v, lane);
  const uint32_t exponent = index_exponent(index_block_largest(v));
  const float scale = e8m0_value(exponent);
  uint32_t codes = 0;  // one byte for each of the four elements
  for (int i = 0; i < 4; ++i) codes |= e2m1_code(__fdiv_rn(v[i], scale)) << 8 * i;
  const uint32_t upper = __shfl_down_sync(0xffffffffu, codes, 4);
  const int block = lane / 8, in_block = lane % 8;
  if (in_block < 4) {
    *reinterpret_cast<uint32_t*>(out + block * 16 + in_block * 4) = codes | upper << 4;
  }
  if (in_block == 0) out[index_exponents_offset + block] = static_cast<uint8_t>(exponent);
}

/// Rounds an index query head the way index rows are: Hadamard, then FP4; v as in hadamard_128.
__device__ inline void round_index_query(float (&v)[4], int lane) {
  hadamard_128(v, lane);
  const uint32_t exponent = index_exponent(index_block_largest(v));
  const float scale = e8m0_value(exponent);
  const float inverse = e8m0_value(exponent == 255 ? 255 : 254 - exponent);  // both are powers of two
  for (float& x : v) x = __fmul_rn(e2m1_round(__fmul_rn(x, inverse)), scale);
}

/// One warp unpacks an index row to F32.
__device__ inline void decode_index_row(const uint8_t* row, float* out, int lane) {
  for (int block = 0; block < 4; ++block) {
    const uint32_t byte = row[block * 16 + lane % 16];
    const uint32_t code = lane < 16 ? byte & 15u : byte >> 4;
    out[block * 32 + lane] = e2m1_value(code) * e8m0_value(row[index_exponents_offset + block]);
  }
}

/// A pair of equal BF16 scales.
__device__ inline uint32_t bf16_scale_pair(uint32_t exponent) {
  const uint32_t bits = exponent == 0 ? 0x0040u : exponent == 255 ? 0x7fc0u : exponent << 7;
  return bits | bits << 16;
}

/// Two E4M3 codes (bits 0..7 and 8..15 of `codes`) times the scale, exact in BF16: the shifted bits are the
/// value times 2^-120, and both factors are powers of two. Two products, since 2^120 times the scale may
/// overflow.
__device__ inline uint32_t e4m3_pair(uint32_t codes, uint32_t scale_pair) {
  const uint32_t spread = __byte_perm(codes, 0, 0x4140);  // code 0 in bits 0..7, code 1 in bits 16..23
  const uint32_t bits = (spread & 0x007f007fu) << 4 | (spread & 0x00800080u) << 8;
  return multiply_bf16(multiply_bf16(bits, 0x7b807b80u), scale_pair);
}

/// The two E2M1 codes of a byte (bits 0..7 of `byte`) times the scale, exact in BF16; shifted, they are
/// 2^-126 times their value.
__device__ inline uint32_t e2m1_pair(uint32_t byte, uint32_t scale_pair) {
  const uint32_t spread = (byte & 0x0fu) | (byte & 0xf0u) << 12;
  const uint32_t bits = (spread & 0x00070007u) << 6 | (spread & 0x00080008u) << 12;
  return multiply_bf16(multiply_bf16(bits, 0x7e807e80u), scale_pair);
}

}  // namespace ds4::cuda
