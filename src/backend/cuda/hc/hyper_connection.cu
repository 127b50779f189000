// What:   mixes four residual streams into a sublayer's input and writes its output back (docs/model.md §4).
// Layout: streams F32 [row][stream][d]; fn [24][4d] as in the file; partial sums [row][slice][25].
// Needs:  d a multiple of 128, at most 8192. Sums have one order, independent of the number of rows.
// Bytes:  fn (786 KB for Flash in F16) + 64 KB of streams a row read and written; 2 * 24 * 4d FLOPs a row.
// Why:    leaving one sublayer and mixing for the next touch the same slice of the streams, so they share a
// kernel; the
//         Sinkhorn iterations run on 16 lanes with shuffles, since one thread would take longer than the
//         whole layer.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/hc/hyper_connection.hpp"
#include "backend/cuda/hc/mixing.cuh"

namespace ds4::cuda {
namespace {

constexpr int slice_threads = 256;
constexpr int outputs_per_warp = 3;  // 8 warps for 24 outputs
constexpr int finish_threads = 512;

// Four neighbouring weights.
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

template <class T>
__global__ void __launch_bounds__(slice_threads)
    leave_and_mix_kernel(StreamBuffers b, const float* __restrict__ out, const T* __restrict__ fn,
                         int outputs) {
  __shared__ __align__(16) float slice[4][mix_slice_columns];
  const int row = blockIdx.y, first = blockIdx.x * mix_slice_columns, d = b.width;
  float* x = b.streams + static_cast<size_t>(row) * 4 * d + first;
  if (threadIdx.x < mix_slice_columns) {
    const int i = threadIdx.x;
    float in[4];
    for (int h = 0; h < 4; ++h) in[h] = x[h * d + i];
    if (out != nullptr) {
      const float* weights = b.weights + row * 24;
      const float o = out[static_cast<size_t>(row) * d + first + i];
      float mixed[4];
      for (int k = 0; k < 4; ++k) {
        mixed[k] = weights[4 + k] * o;
        for (int j = 0; j < 4; ++j) mixed[k] = fmaf(weights[8 + 4 * j + k], in[j], mixed[k]);
      }
      for (int k = 0; k < 4; ++k) x[k * d + i] = in[k] = mixed[k];
    }
    for (int h = 0; h < 4; ++h) slice[h][i] = in[h];
  }
  if (fn == nullptr) return;
  __syncthreads();
  // A lane owns four columns of every stream; the weights of all its outputs are asked for before the first
  // is used.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* partial = b.partial + (static_cast<size_t>(row) * gridDim.x + blockIdx.x) * mix_values;
  float4 weight[outputs_per_warp][4];
#pragma unroll
  for (int o = 0; o < outputs_per_warp; ++o) {
    const int k = min(warp * outputs_per_warp + o, outputs - 1);
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      weight[o][h] =
          load_weights(fn + static_cast<size_t>(k) * 4 * d + static_cast<size_t>(h) * d + first + 4 * lane);
    }
  }
  float4 value[4];
  float squares = 0;
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    value[h] = *reinterpret_cast<const float4*>(&slice[h][4 * lane]);
    squares = fmaf(value[h].x, value[h].x, squares);
    squares = fmaf(value[h].y, value[h].y, squares);
    squares = fmaf(value[h].z, value[h].z, squares);
    squares = fmaf(value[h].w, value[h].w, squares);
  }
#pragma unroll
  for (int o = 0; o < outputs_per_warp; ++o) {
    float sum = 0;
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      sum = fmaf(weight[o][h].x, value[h].x, sum);
      sum = fmaf(weight[o][h].y, value[h].y, sum);
      sum = fmaf(weight[o][h].z, value[h].z, sum);
      sum = fmaf(weight[o][h].w, value[h].w, sum);
    }
    sum = warp_sum(sum);
    const int k = warp * outputs_per_warp + o;
    if (lane == 0 && k < outputs) partial[k] = sum;
  }
  if (warp == 0) {
    squares = warp_sum(squares);
    if (lane == 0) partial[outputs] = squares;
  }
}

// Sums of the slices' mix values: each warp adds a contiguous part, the first warp the parts, both in
// ascending order.
__device__ float sum_partials(const StreamBuffers& b, int row, int outputs, float (*parts)[32]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = finish_threads / 32;
  const int slices = b.width / mix_slice_columns, share = (slices + warps - 1) / warps;
  const float* partial = b.partial + static_cast<size_t>(row) * slices * mix_values;
  float sum = 0;
  if (lane <= outputs) {
    for (int s = warp * share; s < min(slices, (warp + 1) * share); ++s)
      sum += partial[s * mix_values + lane];
  }
  parts[warp][lane] = sum;
  __syncthreads();
  sum = 0;
  if (threadIdx.x < 32) {
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += parts[w][lane];
  }
  return sum;
}

// First warp: the mixing weights from the summed mix values, to shared memory and to b.weights.
__device__ void finish_mix(const StreamBuffers& b, const DeviceMixer& mixer, int row, int outputs, float sum,
                           float* weights) {
  const int lane = threadIdx.x;
  const float squares = __shfl_sync(0xffffffffu, sum, outputs);
  const float mix = sum / sqrtf(squares / static_cast<float>(4 * b.width) + mixing_epsilon);
  if (outputs == 4) {
    if (lane < 4) weights[lane] = sigmoid(mix * mixer.scale[0] + mixer.base[lane]) + mixing_epsilon;
    return;
  }
  const float value = mix * mixer.scale[lane < 4   ? 0
                                        : lane < 8 ? 1
                                                   : 2] +
                      (lane < 24 ? mixer.base[lane] : 0.0f);
  const float comb = sinkhorn(__shfl_sync(0xffffffffu, value, (lane + 8) % 32));
  if (lane < 4) weights[lane] = sigmoid(value) + mixing_epsilon;
  if (lane >= 4 && lane < 8) weights[lane] = 2.0f * sigmoid(value);
  if (lane < 16) weights[8 + lane] = comb;
  __syncwarp();
  if (lane < 24) b.weights[row * 24 + lane] = weights[lane];
}

template <int columns_per_thread>
__global__ void __launch_bounds__(finish_threads)
    enter_kernel(StreamBuffers b, DeviceMixer mixer, const float* __restrict__ norm, int outputs) {
  __shared__ float weights[24], reduce[32], parts[finish_threads / 32][32];
  const int row = blockIdx.x, d = b.width, lane = threadIdx.x % 32;
  // The streams are asked for before the mixing weights are known: up to 16 columns a thread.
  const float* x = b.streams + static_cast<size_t>(row) * 4 * d;
  float stream[columns_per_thread][4], mixed[columns_per_thread];
#pragma unroll
  for (int c = 0; c < columns_per_thread; ++c) {
    const int i = threadIdx.x + c * finish_threads;
#pragma unroll
    for (int h = 0; h < 4; ++h) stream[c][h] = i < d ? x[h * d + i] : 0.0f;
  }
  const float sum = sum_partials(b, row, outputs, parts);
  if (threadIdx.x < 32) finish_mix(b, mixer, row, outputs, sum, weights);
  __syncthreads();
  float squares = 0;
#pragma unroll
  for (int c = 0; c < columns_per_thread; ++c) {
    float y = weights[0] * stream[c][0];
#pragma unroll
    for (int h = 1; h < 4; ++h) y = fmaf(weights[h], stream[c][h], y);
    mixed[c] = y;
    squares = fmaf(y, y, squares);
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, reduce) / static_cast<float>(d) + mixing_epsilon);
#pragma unroll
  for (int c = 0; c < columns_per_thread; ++c) {  // a warp holds 32 consecutive columns: one rounding block
    const int i = threadIdx.x + c * finish_threads;
    if (i < d) {
      const float y = mixed[c] * factor * norm[i];
      const float scale = warp_max(fabsf(y)) / 127.0f;
      const size_t place = static_cast<size_t>(row) * d + i;
      b.normed[place] = y;
      b.codes[place] = static_cast<int8_t>(scale > 0 ? __float2int_rn(y / scale) : 0);
      if (lane == 0) b.scales[place / 32] = scale;
    }
  }
}

cudaError_t enter(const StreamBuffers& b, const DeviceMixer& mixer, const float* norm, int outputs, int rows,
                  cudaStream_t stream) {
  if (b.width <= finish_threads) {
    enter_kernel<1><<<rows, finish_threads, 0, stream>>>(b, mixer, norm, outputs);
  } else if (b.width <= 8 * finish_threads) {
    enter_kernel<8><<<rows, finish_threads, 0, stream>>>(b, mixer, norm, outputs);
  } else if (b.width <= 16 * finish_threads) {
    enter_kernel<16><<<rows, finish_threads, 0, stream>>>(b, mixer, norm, outputs);
  } else {
    return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t leave_and_mix(const StreamBuffers& b, const float* out, const DeviceMixer* mixer, int rows,
                          cudaStream_t stream) {
  const dim3 grid(b.width / mix_slice_columns, rows);
  const int outputs = mixer == nullptr ? 0 : static_cast<int>(mixer->fn.rows);
  const uint8_t* fn = mixer == nullptr ? nullptr : mixer->fn.quants;
  const format::TensorType type = mixer == nullptr ? format::TensorType::f32 : mixer->fn.type;
  if (type == format::TensorType::f16) {
    leave_and_mix_kernel<<<grid, slice_threads, 0, stream>>>(b, out, reinterpret_cast<const __half*>(fn),
                                                             outputs);
  } else if (type == format::TensorType::bf16) {
    leave_and_mix_kernel<<<grid, slice_threads, 0, stream>>>(
        b, out, reinterpret_cast<const __nv_bfloat16*>(fn), outputs);
  } else {
    leave_and_mix_kernel<<<grid, slice_threads, 0, stream>>>(b, out, reinterpret_cast<const float*>(fn),
                                                             outputs);
  }
  return cudaGetLastError();
}

cudaError_t enter_sublayer(const StreamBuffers& b, const DeviceMixer& mixer, const float* norm, int rows,
                           cudaStream_t stream) {
  return enter(b, mixer, norm, 24, rows, stream);
}

cudaError_t enter_head(const StreamBuffers& b, const DeviceMixer& mixer, const float* norm, int rows,
                       cudaStream_t stream) {
  return enter(b, mixer, norm, 4, rows, stream);
}

}  // namespace ds4::cuda
