// What:   for a chunk of tokens: a sublayer's output into the four residual streams, mixing weights of the
//         next sublayer, its normalised input (docs/model.md §4).
// Layout: streams F32 [token][stream][d]; fn [24][4d] as in the file; partial sums [token][slice][25].
// Needs:  d a multiple of 32, at most 8192. Sums have one order, independent of the number of tokens.
// Bytes:  a sublayer of 4096 tokens of Flash reads the streams twice (268 MB each), writes them once, reads
//         67 MB and writes 67 MB: 0.18 ms at 4.2 TB/s; 2 * 2 * 24 * 4d FLOP a token on tensor cores.
// Why:    a warp holds 16 tokens by 16 columns of all streams as operands of TF32 products, so the product
//         with fn costs no second read of the streams, and fn is read once for 16 tokens. Streams are split
//         into two TF32 numbers (22 bits); F16 and BF16 weights are TF32 numbers as they are.
#include <cuda_bf16.h>

#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/hc/mixing.cuh"
#include "backend/cuda/hc/prefill_hyper_connection.hpp"

namespace ds4::cuda {
namespace {

constexpr int slice_values = 25;  // mix values and the sum of squares
constexpr int tile_tokens = 16;
constexpr int quads = 2;  // groups of four columns that a lane has of every stream
constexpr int warp_columns = 16 * quads;
constexpr int leave_warps = 8;
constexpr int slice_columns = leave_warps * warp_columns;

int slices(uint32_t width) {
  return static_cast<int>((width + slice_columns - 1) / slice_columns);
}

// Four neighbouring weights as F32.
__device__ float4 load_weights(const float* p) {
  return __ldg(reinterpret_cast<const float4*>(p));
}
__device__ float4 load_weights(const __half* p) {
  const uint2 bits = __ldg(reinterpret_cast<const uint2*>(p));
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
  return {low.x, low.y, high.x, high.y};
}
__device__ float4 load_weights(const __nv_bfloat16* p) {
  const uint2 bits = __ldg(reinterpret_cast<const uint2*>(p));
  return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u), __uint_as_float(bits.y << 16),
          __uint_as_float(bits.y & 0xffff0000u)};
}

__device__ uint32_t to_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

struct Split {
  uint32_t high, low;
};

__device__ Split split(float x) {
  const uint32_t high = to_tf32(x);
  return {high, to_tf32(x - __uint_as_float(high))};
}

// Fragments of m16n8k8 for lane l, g = l / 4, c = l mod 4: A (g, c) (g + 8, c) (g, c + 4) (g + 8, c + 4);
// B (c, g) (c + 4, g); C (g, 2c) (g, 2c + 1) (g + 8, 2c) (g + 8, 2c + 1). Source: PTX ISA.
__device__ void mma_tf32(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Adds the products of columns i and j (of a lane's four) of 16 tokens with 8 outputs. x[0] is token g, x[1]
// token g + 8. Which column has which place in k is free, as long as both operands agree.
template <bool exact_weights>
__device__ void add_products(float (&sum)[4], const Split& x0i, const Split& x1i, const Split& x0j,
                             const Split& x1j, float wi, float wj) {
  if constexpr (exact_weights) {
    const uint32_t b0 = __float_as_uint(wi), b1 = __float_as_uint(wj);
    mma_tf32(sum, x0i.low, x1i.low, x0j.low, x1j.low, b0, b1);
    mma_tf32(sum, x0i.high, x1i.high, x0j.high, x1j.high, b0, b1);
  } else {
    const Split b0 = split(wi), b1 = split(wj);
    mma_tf32(sum, x0i.high, x1i.high, x0j.high, x1j.high, b0.low, b1.low);
    mma_tf32(sum, x0i.low, x1i.low, x0j.low, x1j.low, b0.high, b1.high);
    mma_tf32(sum, x0i.high, x1i.high, x0j.high, x1j.high, b0.high, b1.high);
  }
}

__device__ void axpy(float4& sum, float a, const float4& x) {
  sum.x = fmaf(a, x.x, sum.x);
  sum.y = fmaf(a, x.y, sum.y);
  sum.z = fmaf(a, x.z, sum.z);
  sum.w = fmaf(a, x.w, sum.w);
}

__device__ float add_squares(float sum, const float4& x) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}

// New values of four columns in the four streams of one token: post and comb applied.
template <int count>
__device__ void write_back(float4 (&x)[4][count], int q, const float4& out, const float* weights) {
  float4 mixed[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float post = weights[4 + k];
    mixed[k] = make_float4(post * out.x, post * out.y, post * out.z, post * out.w);
#pragma unroll
    for (int j = 0; j < 4; ++j) axpy(mixed[k], weights[8 + 4 * j + k], x[j][q]);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k][q] = mixed[k];
}

// One slice of columns of 16 tokens; T is the type of fn, `tiles` its rows / 8 rounded up, 0 for no mixing.
template <class T, int tiles, bool has_out>
__global__ void __launch_bounds__(32 * leave_warps, 2)
    leave_and_mix_kernel(PrefillStreams b, const float* __restrict__ out, const T* __restrict__ fn,
                         int outputs) {
  __shared__ float sums[leave_warps][tile_tokens][8 * tiles + 1];
  __shared__ __align__(16) float weights[tile_tokens][24];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int first_token = blockIdx.x * tile_tokens, tokens = static_cast<int>(b.tokens);
  const int d = static_cast<int>(b.width);
  if constexpr (has_out) {
    for (int i = threadIdx.x; i < tile_tokens * 24; i += blockDim.x) {
      weights[i / 24][i % 24] = first_token + i / 24 < tokens ? b.weights[first_token * 24 + i] : 0.0f;
    }
    __syncthreads();
  }
  float sum[tiles > 0 ? tiles : 1][4] = {}, squares[2] = {};
  const int column = blockIdx.y * slice_columns + warp * warp_columns + 4 * c;
  const int token[2] = {first_token + g, first_token + g + 8};
  float4 x[2][4][quads], o[2][quads];  // everything is asked for before the first is used
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool present = token[r] < tokens && column < d;
    const float* place = b.streams + static_cast<size_t>(token[r]) * 4 * d + column;
    const float* from = out + static_cast<size_t>(token[r]) * d + column;
#pragma unroll
    for (int q = 0; q < quads; ++q) {
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        x[r][h][q] = present ? *reinterpret_cast<const float4*>(place + h * d + 16 * q) : float4{};
      }
      if constexpr (has_out) {
        o[r][q] = present ? __ldg(reinterpret_cast<const float4*>(from + 16 * q)) : float4{};
      }
    }
  }
  if constexpr (has_out) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int q = 0; q < quads; ++q) write_back<quads>(x[r], q, o[r][q], weights[g + 8 * r]);
      if (token[r] >= tokens || column >= d) continue;
      float* place = b.streams + static_cast<size_t>(token[r]) * 4 * d + column;
#pragma unroll
      for (int h = 0; h < 4; ++h) {
#pragma unroll
        for (int q = 0; q < quads; ++q) *reinterpret_cast<float4*>(place + h * d + 16 * q) = x[r][h][q];
      }
    }
  }
  if constexpr (tiles > 0) {
    constexpr bool exact = sizeof(T) == 2;
    if (column < d) {
#pragma unroll
      for (int h = 0; h < 4; ++h) {
#pragma unroll
        for (int q = 0; q < quads; ++q) {
          const float4 v[2] = {x[0][h][q], x[1][h][q]};
          for (int r = 0; r < 2; ++r) squares[r] = add_squares(squares[r], v[r]);
          const Split x0[4] = {split(v[0].x), split(v[0].y), split(v[0].z), split(v[0].w)};
          const Split x1[4] = {split(v[1].x), split(v[1].y), split(v[1].z), split(v[1].w)};
#pragma unroll
          for (int t = 0; t < tiles; ++t) {
            const int row = min(8 * t + g, outputs - 1);
            const float4 w = load_weights(fn + (static_cast<size_t>(row) * 4 + h) * d + column + 16 * q);
            add_products<exact>(sum[t], x0[0], x1[0], x0[1], x1[1], w.x, w.y);
            add_products<exact>(sum[t], x0[2], x1[2], x0[3], x1[3], w.z, w.w);
          }
        }
      }
    }
  }
  if constexpr (tiles > 0) {
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      for (int i = 0; i < 4; ++i) sums[warp][g + 8 * (i / 2)][8 * t + 2 * c + i % 2] = sum[t][i];
    }
    for (int r = 0; r < 2; ++r) {
      squares[r] += __shfl_xor_sync(0xffffffffu, squares[r], 1);
      squares[r] += __shfl_xor_sync(0xffffffffu, squares[r], 2);
      if (c == 0) sums[warp][g + 8 * r][8 * tiles] = squares[r];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tile_tokens * slice_values; i += blockDim.x) {
      const int token = i / slice_values, value = i % slice_values;
      if (first_token + token >= tokens || value > outputs) continue;
      float total = 0;
      for (int w = 0; w < leave_warps; ++w) {
        total += sums[w][token][value == outputs ? 8 * tiles : value];
      }
      b.partial[(static_cast<size_t>(first_token + token) * gridDim.y + blockIdx.y) * slice_values + value] =
          total;
    }
  }
}

constexpr int finish_warps = 4;

// A warp finishes the mix values of a token: 24 (pre, post, comb) or the head's 4.
__global__ void __launch_bounds__(32 * finish_warps)
    finish_mix_kernel(PrefillStreams b, DeviceMixer mixer, int outputs, int slice_count) {
  const int lane = threadIdx.x % 32;
  const uint32_t token = blockIdx.x * finish_warps + threadIdx.x / 32;
  if (token >= b.tokens) return;
  const float* partial = b.partial + static_cast<size_t>(token) * slice_count * slice_values;
  float sum = 0;
  if (lane <= outputs) {
    for (int s = 0; s < slice_count; ++s) sum += partial[s * slice_values + lane];
  }
  const float squares = __shfl_sync(0xffffffffu, sum, outputs);
  const float mix = sum / sqrtf(squares / static_cast<float>(4 * b.width) + mixing_epsilon);
  float* weights = b.weights + static_cast<size_t>(token) * 24;
  if (outputs == 4) {
    if (lane < 4) weights[lane] = sigmoid(mix * mixer.scale[0] + mixer.base[lane]) + mixing_epsilon;
    return;
  }
  const int group = lane < 4 ? 0 : lane < 8 ? 1 : 2;
  const float value = lane < 24 ? mix * mixer.scale[group] + mixer.base[lane] : 0.0f;
  const float comb = sinkhorn(__shfl_sync(0xffffffffu, value, (lane + 8) % 32));
  if (lane < 4) weights[lane] = sigmoid(value) + mixing_epsilon;
  if (lane >= 4 && lane < 8) weights[lane] = 2.0f * sigmoid(value);
  if (lane < 16) weights[8 + lane] = comb;
}

__device__ void store_halves(__half* place, const float (&v)[4]) {
  const __half2 pair[2] = {__floats2half2_rn(v[0], v[1]), __floats2half2_rn(v[2], v[3])};
  *reinterpret_cast<uint2*>(place) = *reinterpret_cast<const uint2*>(pair);
}

// A block mixes and normalises one token; a thread has `groups` groups of four columns.
template <int threads, int groups>
__global__ void __launch_bounds__(threads)
    enter_kernel(PrefillStreams b, const float* __restrict__ norm, MixedRows out) {
  constexpr float largest = 65504.0f;
  __shared__ float reduce[32];
  const int d = static_cast<int>(b.width);
  const size_t token = blockIdx.x;
  const float* x = b.streams + token * 4 * d;
  const float4 pre = __ldg(reinterpret_cast<const float4*>(b.weights + token * 24));
  float4 mixed[groups];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < groups; ++i) {
    const int column = 4 * (threadIdx.x + i * threads);
    float4 in[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      in[h] = column < d ? __ldg(reinterpret_cast<const float4*>(x + h * d + column)) : float4{};
    }
    mixed[i] = make_float4(pre.x * in[0].x, pre.x * in[0].y, pre.x * in[0].z, pre.x * in[0].w);
    axpy(mixed[i], pre.y, in[1]);
    axpy(mixed[i], pre.z, in[2]);
    axpy(mixed[i], pre.w, in[3]);
    squares = add_squares(squares, mixed[i]);
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, reduce) / static_cast<float>(d) + mixing_epsilon);
#pragma unroll
  for (int i = 0; i < groups; ++i) {
    const int column = 4 * (threadIdx.x + i * threads);
    if (column >= d) continue;
    const float4 w = __ldg(reinterpret_cast<const float4*>(norm + column));
    const size_t place = token * d + column;
    const float4 y = make_float4(mixed[i].x * factor * w.x, mixed[i].y * factor * w.y,
                                 mixed[i].z * factor * w.z, mixed[i].w * factor * w.w);
    float v[4] = {y.x, y.y, y.z, y.w};
    if (out.full != nullptr) *reinterpret_cast<float4*>(out.full + place) = y;
    if (out.high == nullptr) continue;
#pragma unroll
    for (float& value : v) value = value > largest ? largest : value < -largest ? -largest : value;
    store_halves(out.high + place, v);
    if (out.low == nullptr) continue;
#pragma unroll
    for (float& value : v) value -= __half2float(__float2half_rn(value));
    store_halves(out.low + place, v);
  }
}

template <class T, int tiles>
void launch_leave(const PrefillStreams& b, const float* out, const uint8_t* fn, int outputs,
                  cudaStream_t stream) {
  const dim3 grid((b.tokens + tile_tokens - 1) / tile_tokens, slices(b.width));
  const T* typed = reinterpret_cast<const T*>(fn);
  if (out == nullptr) {
    leave_and_mix_kernel<T, tiles, false><<<grid, 32 * leave_warps, 0, stream>>>(b, out, typed, outputs);
  } else {
    leave_and_mix_kernel<T, tiles, true><<<grid, 32 * leave_warps, 0, stream>>>(b, out, typed, outputs);
  }
}

template <class T>
void launch_mix(const PrefillStreams& b, const float* out, const DeviceMatrix& fn, cudaStream_t stream) {
  if (fn.rows <= 8) {
    launch_leave<T, 1>(b, out, fn.quants, static_cast<int>(fn.rows), stream);
  } else {
    launch_leave<T, 3>(b, out, fn.quants, static_cast<int>(fn.rows), stream);
  }
}

}  // namespace

size_t prefill_mix_partials(uint32_t tokens, uint32_t width) {
  return static_cast<size_t>(tokens) * static_cast<size_t>(slices(width)) * slice_values;
}

cudaError_t prefill_leave_and_mix(const PrefillStreams& b, const float* out, const DeviceMixer* mixer,
                                  cudaStream_t stream) {
  if (b.tokens == 0) return cudaSuccess;
  if (mixer == nullptr) {
    if (out != nullptr) launch_leave<float, 0>(b, out, nullptr, 0, stream);
    return cudaGetLastError();
  }
  const DeviceMatrix& fn = mixer->fn;
  if (fn.rows != 4 && fn.rows != 24) return cudaErrorInvalidValue;
  if (fn.type == format::TensorType::f16) {
    launch_mix<__half>(b, out, fn, stream);
  } else if (fn.type == format::TensorType::bf16) {
    launch_mix<__nv_bfloat16>(b, out, fn, stream);
  } else {
    launch_mix<float>(b, out, fn, stream);
  }
  const unsigned blocks = (b.tokens + finish_warps - 1) / finish_warps;
  finish_mix_kernel<<<blocks, 32 * finish_warps, 0, stream>>>(b, *mixer, static_cast<int>(fn.rows),
                                                              slices(b.width));
  return cudaGetLastError();
}

cudaError_t prefill_enter(const PrefillStreams& b, const float* norm, const MixedRows& out,
                          cudaStream_t stream) {
  if (b.tokens == 0) return cudaSuccess;
  if (b.width <= 1024) {
    enter_kernel<256, 1><<<b.tokens, 256, 0, stream>>>(b, norm, out);
  } else if (b.width <= 4096) {
    enter_kernel<256, 4><<<b.tokens, 256, 0, stream>>>(b, norm, out);
  } else if (b.width <= 8192) {
    enter_kernel<512, 4><<<b.tokens, 512, 0, stream>>>(b, norm, out);
  } else {
    return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace ds4::cuda
