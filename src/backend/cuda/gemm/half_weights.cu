// Weights of any format to F16.
// Layout: planes of device_types.hpp to [rows][cols]; a thread decodes the 16 bytes of a chunk (8 columns of
// plain formats) into pieces of 16 (8) neighbouring columns.
// Preconditions: half_weights.hpp.
// Bytes: every plane once, 2 written per weight (4 with a low plane); Q8_0 3.1 bytes a weight.
// Why: bound by memory; a piece fills whole sectors, codes become F32 by byte permutations. Values are those
// of the format to the last bit but one before they are rounded.
#include <algorithm>

#include "backend/cuda/gemm/half_weights.hpp"
#include "backend/cuda/gemv/row_formats.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t kernel_threads = 256;
constexpr uint32_t chunks_per_thread = 8;

struct Launch {
  HalfWeights weights[max_half_weights];
  uint32_t first_block[max_half_weights + 1];
  uint32_t count;
};

/// Signed byte `i` of a word, exact.
__device__ __forceinline__ float byte_value(int word, uint32_t i) {
  const uint32_t bits = __byte_perm(static_cast<uint32_t>(word) ^ 0x80808080u, 0x4b000000u, 0x7440u | i);
  return __fsub_rn(__uint_as_float(bits), 8388608.0f + 128.0f);
}
/// Unsigned byte `i`.
__device__ __forceinline__ float unsigned_byte_value(uint32_t word, uint32_t i) {
  return __fsub_rn(__uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | i)), 8388608.0f);
}

__device__ __forceinline__ uint32_t bits_of(__half2 v) {
  return *reinterpret_cast<const uint32_t*>(&v);
}

/// `columns` (8 or 16) values to both planes.
template <uint32_t columns>
__device__ __forceinline__ void store_values(const HalfWeights& out, size_t at, const float (&v)[columns]) {
  uint32_t high[columns / 2], low[columns / 2];
#pragma unroll
  for (uint32_t i = 0; i < columns / 2; ++i) {
    const float x = fminf(fmaxf(v[2 * i], -65504.0f), 65504.0f);
    const float y = fminf(fmaxf(v[2 * i + 1], -65504.0f), 65504.0f);
    const __half2 rounded = __floats2half2_rn(x, y);
    const float2 back = __half22float2(rounded);
    high[i] = bits_of(rounded);
    low[i] = bits_of(__floats2half2_rn(__fsub_rn(x, back.x), __fsub_rn(y, back.y)));
  }
#pragma unroll
  for (uint32_t i = 0; i < columns / 2; i += 4) {
    *reinterpret_cast<uint4*>(out.high + at + 2 * i) =
        make_uint4(high[i], high[i + 1], high[i + 2], high[i + 3]);
    if (out.low != nullptr) {
      *reinterpret_cast<uint4*>(out.low + at + 2 * i) =
          make_uint4(low[i], low[i + 1], low[i + 2], low[i + 3]);
    }
  }
}

/// 16 signed codes times a scale.
__device__ __forceinline__ void store_codes(const HalfWeights& out, size_t at, const int* words, float d) {
  float v[16];
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) v[i] = __fmul_rn(d, byte_value(words[i / 4], i % 4));
  store_values(out, at, v);
}
/// 16 unsigned codes times a scale, less a minimum.
__device__ __forceinline__ void store_codes(const HalfWeights& out, size_t at, const uint32_t* words,
                                            uint32_t mask, float d, float minus_min) {
  float v[16];
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    v[i] = __fmaf_rn(d, unsigned_byte_value(words[i / 4] & mask, i % 4), minus_min);
  }
  store_values(out, at, v);
}

/// Chunk `chunk` of a row; `at` is where the row begins in the F16 matrix.
template <TensorType type>
__device__ __forceinline__ void convert_chunk(const HalfWeights& out, const WeightRow& row, size_t at,
                                              uint32_t chunk, const uint8_t* tables) {
  using Format = RowFormat<type>;
  if constexpr (type == TensorType::f32) {
    const auto a = Format::decode(Format::load(row, 2 * chunk), 2 * chunk, tables);
    const auto b = Format::decode(Format::load(row, 2 * chunk + 1), 2 * chunk + 1, tables);
    const float v[8] = {a.v[0], a.v[1], a.v[2], a.v[3], b.v[0], b.v[1], b.v[2], b.v[3]};
    store_values(out, at + size_t{chunk} * 8, v);
  } else {
    const auto w = Format::decode(Format::load(row, chunk), chunk, tables);
    if constexpr (type == TensorType::f16 || type == TensorType::bf16) {
      store_values(out, at + size_t{chunk} * 8, w.v);
    } else if constexpr (type == TensorType::q8_0) {
      store_codes(out, at + size_t{chunk} * 16, w.q, w.d);
    } else if constexpr (type == TensorType::mxfp4) {
      store_codes(out, at + size_t{chunk} * 32, w.low, w.d);
      store_codes(out, at + size_t{chunk} * 32 + 16, w.high, w.d);
    } else if constexpr (type == TensorType::q4_k) {
      const size_t first = at + size_t{chunk / 2} * 64 + chunk % 2 * 16;
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t words[4] = {static_cast<uint32_t>(w.q[i][0]), static_cast<uint32_t>(w.q[i][1]),
                                   static_cast<uint32_t>(w.q[i][2]), static_cast<uint32_t>(w.q[i][3])};
        store_codes(out, first + 32 * i, words, ~0u, w.d[i], w.minus_min[i]);
      }
    } else if constexpr (type == TensorType::q2_k) {
      const size_t first = at + size_t{chunk / 2} * 128 + chunk % 2 * 16;
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        store_codes(out, first + 32 * i, w.q, 0x03030303u << (2 * i), w.d[i], w.minus_min[i]);
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        store_codes(out, at + size_t{chunk} * 64 + 16 * i, w.q[i / 2] + i % 2 * 4, w.d[i / 2]);
      }
    }
  }
}

__host__ __device__ constexpr uint32_t columns_of_chunk(TensorType type) {
  return type == TensorType::f32 ? 8 : chunk_columns(type);
}

/// Bytes of a row in each plane.
__device__ __forceinline__ WeightRow weight_row(const DeviceMatrix& w, size_t row) {
  const size_t cols = w.cols;
  switch (w.type) {
    case TensorType::f32:
      return {w.quants + row * cols * 4, nullptr, nullptr};
    case TensorType::f16:
    case TensorType::bf16:
      return {w.quants + row * cols * 2, nullptr, nullptr};
    case TensorType::q8_0:
      return {w.quants + row * cols, w.scales + row * (cols / 16), nullptr};
    case TensorType::mxfp4:
      return {w.quants + row * (cols / 2), w.scales + row * (cols / 32), nullptr};
    case TensorType::q4_k:
      return {w.quants + row * (cols / 2), w.scales + row * (cols / 16), nullptr};
    case TensorType::q2_k:
      return {w.quants + row * (cols / 4), w.scales + row * (cols / 16), w.extras + row * (cols / 64)};
    default:
      return {w.quants + row * (cols / 4), nullptr, w.extras + row * (cols / 128)};
  }
}

template <TensorType type>
__device__ __forceinline__ void convert_block(const HalfWeights& out, uint32_t block, const uint8_t* tables) {
  const uint32_t chunks_of_row = out.w.cols / columns_of_chunk(type);
  const size_t chunks = size_t{out.w.rows} * chunks_of_row;
  const size_t first = size_t{block} * (kernel_threads * chunks_per_thread) + threadIdx.x;
#pragma unroll 2
  for (uint32_t i = 0; i < chunks_per_thread; ++i) {
    const size_t chunk = first + i * kernel_threads;
    if (chunk >= chunks) break;
    const size_t row = chunk / chunks_of_row;
    convert_chunk<type>(out, weight_row(out.w, row), row * out.w.cols,
                        static_cast<uint32_t>(chunk - row * chunks_of_row), tables);
  }
}

__global__ void __launch_bounds__(kernel_threads) convert_kernel(const __grid_constant__ Launch launch) {
  extern __shared__ uint4 shared[];
  uint8_t* const tables = reinterpret_cast<uint8_t*>(shared);
  uint32_t i = 0;
  while (blockIdx.x >= launch.first_block[i + 1]) ++i;
  const HalfWeights& weights = launch.weights[i];
  const uint32_t block = blockIdx.x - launch.first_block[i];
  switch (weights.w.type) {
    case TensorType::f32:
      return convert_block<TensorType::f32>(weights, block, tables);
    case TensorType::f16:
      return convert_block<TensorType::f16>(weights, block, tables);
    case TensorType::bf16:
      return convert_block<TensorType::bf16>(weights, block, tables);
    case TensorType::q8_0:
      return convert_block<TensorType::q8_0>(weights, block, tables);
    case TensorType::mxfp4:
      return convert_block<TensorType::mxfp4>(weights, block, tables);
    case TensorType::q4_k:
      return convert_block<TensorType::q4_k>(weights, block, tables);
    case TensorType::q2_k:
      return convert_block<TensorType::q2_k>(weights, block, tables);
    default:
      fill_iq2_pairs(tables);
      __syncthreads();
      return convert_block<TensorType::iq2_xxs>(weights, block, tables);
  }
}

}  // namespace

cudaError_t half_weights(std::span<const HalfWeights> weights, cudaStream_t stream) {
  if (weights.size() > max_half_weights) return cudaErrorInvalidValue;
  Launch launch = {};
  uint32_t blocks = 0, shared_bytes = 0;
  for (const HalfWeights& w : weights) {
    const uint32_t columns = columns_of_chunk(w.w.type);
    if (columns == 0 || w.w.cols % columns != 0) return cudaErrorInvalidValue;
    if (w.w.type == TensorType::iq2_xxs) shared_bytes = iq2_pairs_bytes;
    const size_t chunks = size_t{w.w.rows} * (w.w.cols / columns);
    launch.weights[launch.count] = w;
    launch.first_block[launch.count++] = blocks;
    constexpr size_t chunks_of_block = kernel_threads * chunks_per_thread;
    blocks += static_cast<uint32_t>((chunks + chunks_of_block - 1) / chunks_of_block);
  }
  if (blocks == 0) return cudaSuccess;
  for (uint32_t i = launch.count; i <= max_half_weights; ++i) launch.first_block[i] = blocks;
  const cudaError_t status = cudaFuncSetAttribute(convert_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(iq2_pairs_bytes));
  if (status != cudaSuccess) return status;
  convert_kernel<<<blocks, kernel_threads, shared_bytes, stream>>>(launch);
  return cudaPeekAtLastError();
}

}  // namespace ds4::cuda
