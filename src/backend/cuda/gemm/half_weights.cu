// Weights of any format to F16.
// Layout: planes of device_types.hpp to [rows][cols]. A warp decodes 32 neighbouring chunks of 16 bytes, puts
// their values into shared memory in the order of the matrix, and stores lines from there.
// Preconditions: half_weights.hpp.
// Bytes: every plane once, 2 written per weight (4 with a low plane); Q8_0 3.1 bytes a weight.
// Why: bound by memory, once stores fill lines of 128 bytes: pieces of 32 bytes straight from the decoding
// threads cost L2 as much as lines (measured: a third of the speed). Codes become F32 by byte permutations.
#include "backend/cuda/gemm/half_weights.hpp"
#include "backend/cuda/gemv/row_formats.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t warps = 4;
constexpr uint32_t kernel_threads = warps * 32;
constexpr uint32_t staged_places = 32 * 64 / 8;  // of 16 bytes, for the chunks of a warp

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

/// Within the finite range of F16; NaN stays.
__device__ __forceinline__ float finite(float x) {
  return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}

/// Eight values as two F16 each.
__device__ __forceinline__ void split(const float* v, uint4& high, uint4& low) {
  const __half2 most = __float2half2_rn(65504.0f);
  uint32_t h[4], l[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const float x = v[2 * i], y = v[2 * i + 1];
    const __half2 rounded = __hmin2_nan(__hmax2_nan(__floats2half2_rn(x, y), __hneg2(most)), most);
    const float2 back = __half22float2(rounded);
    h[i] = bits_of(rounded);
    l[i] = bits_of(__floats2half2_rn(__fsub_rn(finite(x), back.x), __fsub_rn(finite(y), back.y)));
  }
  high = make_uint4(h[0], h[1], h[2], h[3]);
  low = make_uint4(l[0], l[1], l[2], l[3]);
}

/// The values of a warp's 32 chunks in shared memory.
template <bool with_low>
struct Staging {
  uint4* high;
  uint4* low;

  /// Such that lanes at strides of 2, 4 and 8 places use different banks.
  static __device__ __forceinline__ uint32_t at(uint32_t place) { return place ^ place / 8 % 8; }

  /// 16 values from value `first` of the warp on.
  __device__ __forceinline__ void put(const float (&v)[16], uint32_t first) const {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      uint4 h, l;
      split(v + 8 * i, h, l);
      high[at(first / 8 + i)] = h;
      if constexpr (with_low) low[at(first / 8 + i)] = l;
    }
  }
  /// 16 signed codes times a scale.
  __device__ __forceinline__ void put_codes(const int* words, float d, uint32_t first) const {
    float v[16];
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) v[i] = __fmul_rn(d, byte_value(words[i / 4], i % 4));
    put(v, first);
  }
  /// 16 unsigned codes times a scale, less a minimum.
  __device__ __forceinline__ void put_codes(const uint32_t* words, uint32_t mask, float d, float minus_min,
                                            uint32_t first) const {
    float v[16];
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      v[i] = __fmaf_rn(d, unsigned_byte_value(words[i / 4] & mask, i % 4), minus_min);
    }
    put(v, first);
  }
};

/// Planes from a chunk on. They are linear in the chunk: rows do not matter.
template <TensorType type>
__device__ __forceinline__ WeightRow from_chunk(const DeviceMatrix& w, size_t chunk) {
  constexpr bool has_scales = type == TensorType::q8_0 || type == TensorType::mxfp4 ||
                              type == TensorType::q4_k || type == TensorType::q2_k;
  constexpr bool has_extras = type == TensorType::q2_k || type == TensorType::iq2_xxs;
  constexpr uint32_t columns = chunk_columns(type);
  constexpr uint32_t columns_of_scale = type == TensorType::mxfp4 ? 32 : 16;  // of a byte
  constexpr uint32_t columns_of_extra = type == TensorType::q2_k ? 64 : 128;
  return {w.quants + chunk * 16, has_scales ? w.scales + chunk * columns / columns_of_scale : nullptr,
          has_extras ? w.extras + chunk * columns / columns_of_extra : nullptr};
}

/// The chunk of a lane; chunk 0 of the warp begins a block of its format.
template <TensorType type, bool with_low>
__device__ __forceinline__ void stage_chunk(const Staging<with_low>& staging,
                                            const typename RowFormat<type>::Raw& raw, uint32_t lane,
                                            const uint8_t* tables) {
  const auto w = RowFormat<type>::decode(raw, lane, tables);
  if constexpr (type == TensorType::q8_0) {
    staging.put_codes(w.q, w.d, lane * 16);
  } else if constexpr (type == TensorType::mxfp4) {
    staging.put_codes(w.low, w.d, lane * 32);
    staging.put_codes(w.high, w.d, lane * 32 + 16);
  } else if constexpr (type == TensorType::q4_k) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t words[4] = {static_cast<uint32_t>(w.q[i][0]), static_cast<uint32_t>(w.q[i][1]),
                                 static_cast<uint32_t>(w.q[i][2]), static_cast<uint32_t>(w.q[i][3])};
      staging.put_codes(words, ~0u, w.d[i], w.minus_min[i], lane / 2 * 64 + lane % 2 * 16 + 32 * i);
    }
  } else if constexpr (type == TensorType::q2_k) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      staging.put_codes(w.q, 0x03030303u << (2 * i), w.d[i], w.minus_min[i],
                        lane / 2 * 128 + lane % 2 * 16 + 32 * i);
    }
  } else {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      staging.put_codes(w.q[i / 2] + i % 2 * 4, w.d[i / 2], lane * 64 + 16 * i);
    }
  }
}

/// Chunks that a thread loads before it decodes the first.
__host__ __device__ constexpr uint32_t chunks_in_flight(TensorType type) {
  return chunk_columns(type) <= 16 ? 4 : 2;
}
/// Blocks that run together write neighbouring memory; only the tables of IQ2_XXS are worth longer runs.
__host__ __device__ constexpr uint32_t chunks_of_block(TensorType type) {
  return kernel_threads * chunks_in_flight(type) * (type == TensorType::iq2_xxs ? 8 : 1);
}

template <TensorType type, bool with_low>
__device__ __forceinline__ void convert_codes(const HalfWeights& weights, uint32_t block, uint4* shared,
                                              const uint8_t* tables) {
  using Format = RowFormat<type>;
  constexpr uint32_t flight = chunks_in_flight(type), most = chunks_of_block(type);
  constexpr uint32_t places_of_chunk = chunk_columns(type) / 8;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const size_t first = size_t{block} * most;
  const size_t left = size_t{weights.w.rows} * weights.w.cols / chunk_columns(type) - first;
  const uint32_t chunks = static_cast<uint32_t>(left < most ? left : most);
  const WeightRow row = from_chunk<type>(weights.w, first);
  uint4* const high = reinterpret_cast<uint4*>(weights.high) + first * places_of_chunk;
  uint4* const low = with_low ? reinterpret_cast<uint4*>(weights.low) + first * places_of_chunk : nullptr;
  const Staging<with_low> staging = {shared + warp * staged_places, shared + (warps + warp) * staged_places};
#pragma unroll 1
  for (uint32_t i = warp * 32; i < chunks; i += kernel_threads * flight) {
    typename Format::Raw raw[flight];
#pragma unroll
    for (uint32_t j = 0; j < flight; ++j) {
      raw[j] = Format::load(row, min(i + j * kernel_threads + lane, chunks - 1));
    }
#pragma unroll
    for (uint32_t j = 0; j < flight; ++j) {
      stage_chunk<type>(staging, raw[j], lane, tables);
      __syncwarp();
      const uint32_t place = (i + j * kernel_threads) * places_of_chunk + lane;
#pragma unroll
      for (uint32_t k = 0; k < 32 * places_of_chunk; k += 32) {
        if (place + k >= chunks * places_of_chunk) continue;
        high[place + k] = staging.high[staging.at(lane + k)];
        if constexpr (with_low) low[place + k] = staging.low[staging.at(lane + k)];
      }
      __syncwarp();
    }
  }
}

/// Plain formats: eight values become 16 bytes, which neighbouring lanes store next to each other.
template <TensorType type>
__device__ __forceinline__ void convert_plain(const HalfWeights& weights, uint32_t block) {
  using Format = RowFormat<type>;
  constexpr uint32_t parts = 8 / Format::chunk_columns, most = chunks_of_block(type) / parts;
  const size_t first = size_t{block} * most, count = size_t{weights.w.rows} * weights.w.cols / 8;
  const WeightRow row = from_chunk<type>(weights.w, first * parts);
#pragma unroll
  for (uint32_t i = threadIdx.x; i < most; i += kernel_threads) {
    if (first + i >= count) break;
    float v[8];
#pragma unroll
    for (uint32_t j = 0; j < parts; ++j) {
      const auto part = Format::decode(Format::load(row, parts * i + j), 0, nullptr);
#pragma unroll
      for (uint32_t k = 0; k < Format::chunk_columns; ++k) v[Format::chunk_columns * j + k] = part.v[k];
    }
    uint4 high, low;
    split(v, high, low);
    reinterpret_cast<uint4*>(weights.high)[first + i] = high;
    if (weights.low != nullptr) reinterpret_cast<uint4*>(weights.low)[first + i] = low;
  }
}

template <bool with_low>
__device__ __forceinline__ void convert_blocks(const HalfWeights& weights, uint32_t block, uint4* staging,
                                               uint8_t* tables) {
  switch (weights.w.type) {
    case TensorType::q8_0:
      return convert_codes<TensorType::q8_0, with_low>(weights, block, staging, tables);
    case TensorType::mxfp4:
      return convert_codes<TensorType::mxfp4, with_low>(weights, block, staging, tables);
    case TensorType::q4_k:
      return convert_codes<TensorType::q4_k, with_low>(weights, block, staging, tables);
    case TensorType::q2_k:
      return convert_codes<TensorType::q2_k, with_low>(weights, block, staging, tables);
    default:
      fill_iq2_pairs(tables);
      __syncthreads();
      return convert_codes<TensorType::iq2_xxs, with_low>(weights, block, staging, tables);
  }
}

__global__ void __launch_bounds__(kernel_threads) convert_kernel(const __grid_constant__ Launch launch) {
  extern __shared__ uint4 dynamic[];
  __shared__ uint4 staging[2 * warps * staged_places];
  uint8_t* const tables = reinterpret_cast<uint8_t*>(dynamic);
  uint32_t i = 0;
  while (blockIdx.x >= launch.first_block[i + 1]) ++i;
  const HalfWeights& weights = launch.weights[i];
  const uint32_t block = blockIdx.x - launch.first_block[i];
  switch (weights.w.type) {
    case TensorType::f32:
      return convert_plain<TensorType::f32>(weights, block);
    case TensorType::f16:
      return convert_plain<TensorType::f16>(weights, block);
    case TensorType::bf16:
      return convert_plain<TensorType::bf16>(weights, block);
    default:
      break;
  }
  if (weights.low != nullptr) {
    convert_blocks<true>(weights, block, staging, tables);
  } else {
    convert_blocks<false>(weights, block, staging, tables);
  }
}

}  // namespace

cudaError_t half_weights(std::span<const HalfWeights> weights, cudaStream_t stream) {
  if (weights.size() > max_half_weights) return cudaErrorInvalidValue;
  Launch launch = {};
  uint32_t blocks = 0, shared_bytes = 0;
  for (const HalfWeights& w : weights) {
    const uint32_t columns = chunk_columns(w.w.type);
    if (columns == 0 || w.w.cols % columns != 0) return cudaErrorInvalidValue;
    if (w.w.type == TensorType::iq2_xxs) shared_bytes = iq2_pairs_bytes;
    const size_t chunks = size_t{w.w.rows} * (w.w.cols / columns), of_block = chunks_of_block(w.w.type);
    launch.weights[launch.count] = w;
    launch.first_block[launch.count++] = blocks;
    blocks += static_cast<uint32_t>((chunks + of_block - 1) / of_block);
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
