// What:   mixes four residual streams into a sublayer's input and writes its output back (docs/model.md §4).
// Layout: streams F32 [row][stream][d]; fn [24][4d] as in the file; partial sums [row][slice][34]; a block
// for every
//         slice of 128 columns and row, in both kernels.
// Needs:  d a multiple of 128, at most 8192. Sums have one order, independent of the number of rows.
// Bytes:  fn (786 KB for Flash in F16) + 64 KB of streams a row read and written; 2 * 34 * 4d FLOPs a row.
// Why:    leaving one sublayer and mixing for the next touch the same slice of the streams, so they share a
// kernel.
//         The norm of the mixture needs no pass over it: mean(y^2) follows from the products of the streams,
//         which are summed with the mix values. So every block of enter() can finish its own columns. The
//         Sinkhorn iterations are not needed yet and run beside a later kernel (finish_mix.cuh).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/gemv/quantize_device.cuh"
#include "backend/cuda/hc/finish_mix.cuh"
#include "backend/cuda/hc/hyper_connection.hpp"
#include "backend/cuda/hc/mixing.cuh"

namespace ds4::cuda {
namespace {

constexpr int slice_threads = 256;
constexpr int outputs_per_warp = 3;  // 8 warps for 24 outputs
constexpr int enter_threads = mix_slice_columns;

/// Four weights as they lie in memory.
template <class T>
struct alignas(4 * sizeof(T)) Packed {
  T value[4];
};

__device__ float4 unpack(const Packed<float>& w) {
  return {w.value[0], w.value[1], w.value[2], w.value[3]};
}
__device__ float4 unpack(const Packed<__half>& w) {
  return {__half2float(w.value[0]), __half2float(w.value[1]), __half2float(w.value[2]),
          __half2float(w.value[3])};
}
__device__ float4 unpack(const Packed<__nv_bfloat16>& w) {
  return {__bfloat162float(w.value[0]), __bfloat162float(w.value[1]), __bfloat162float(w.value[2]),
          __bfloat162float(w.value[3])};
}

__device__ float add_product(float sum, float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/// The streams' columns of this thread after the sublayer, also written back.
__device__ void leave(const StreamBuffers& b, const float* out, int row, int column, float (&x)[4]) {
  float* streams = b.streams + static_cast<size_t>(row) * 4 * b.width + column;
#pragma unroll
  for (int h = 0; h < 4; ++h) x[h] = streams[h * b.width];
  if (out == nullptr) return;
  const float* weights = b.weights + row * 20;
  const float o = out[static_cast<size_t>(row) * b.width + column];
  float mixed[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    mixed[k] = weights[k] * o;
#pragma unroll
    for (int j = 0; j < 4; ++j) mixed[k] = fmaf(weights[4 + 4 * j + k], x[j], mixed[k]);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) streams[k * b.width] = x[k] = mixed[k];
}

template <class T>
__global__ void __launch_bounds__(slice_threads)
    leave_and_mix_kernel(StreamBuffers b, const float* out, const T* __restrict__ fn, int outputs) {
  __shared__ __align__(16) float slice[4][mix_slice_columns];
  start_successor();
  const int row = blockIdx.y, first = blockIdx.x * mix_slice_columns, d = b.width;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // A lane owns four columns of every stream. Weights depend on nothing: they are asked for first.
  Packed<T> weight[outputs_per_warp][4];
  if (fn != nullptr) {
#pragma unroll
    for (int o = 0; o < outputs_per_warp; ++o) {
      const int k = min(warp * outputs_per_warp + o, outputs - 1);
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        weight[o][h] =
            *reinterpret_cast<const Packed<T>*>(fn + (static_cast<size_t>(k) * 4 + h) * d + first + 4 * lane);
      }
    }
  }
  wait_for_predecessor();
  if (threadIdx.x < mix_slice_columns) {
    float x[4];
    leave(b, out, row, first + static_cast<int>(threadIdx.x), x);
#pragma unroll
    for (int h = 0; h < 4; ++h) slice[h][threadIdx.x] = x[h];
  }
  if (fn == nullptr) return;
  __syncthreads();
  float* partial = b.partial + (static_cast<size_t>(row) * gridDim.x + blockIdx.x) * mix_values;
  float4 value[4];
#pragma unroll
  for (int h = 0; h < 4; ++h) value[h] = *reinterpret_cast<const float4*>(&slice[h][4 * lane]);
  float sum[outputs_per_warp + 2] = {};
#pragma unroll
  for (int o = 0; o < outputs_per_warp; ++o) {
#pragma unroll
    for (int h = 0; h < 4; ++h) sum[o] = add_product(sum[o], unpack(weight[o][h]), value[h]);
  }
  // Products of streams: warp w takes number w, warps 0 and 1 also 8 and 9.
  const auto product = [&](int number) {
    const int h = number < 4 ? 0 : number < 7 ? 1 : number < 9 ? 2 : 3;
    const int k = number < 4 ? number : number < 7 ? number - 3 : number < 9 ? number - 5 : 3;
    return add_product(0.0f, *reinterpret_cast<const float4*>(&slice[h][4 * lane]),
                       *reinterpret_cast<const float4*>(&slice[k][4 * lane]));
  };
  sum[outputs_per_warp] = product(warp);
  sum[outputs_per_warp + 1] = product(8 + warp % 2);
#pragma unroll
  for (float& s : sum) s = warp_sum(s);
  if (lane != 0) return;
#pragma unroll
  for (int o = 0; o < outputs_per_warp; ++o) {
    const int k = warp * outputs_per_warp + o;
    if (k < outputs) partial[k < 4 ? k : mix_post_at - 4 + k] = sum[o];
  }
  partial[mix_products_at + warp] = sum[outputs_per_warp];
  if (warp < 2) partial[mix_products_at + 8 + warp] = sum[outputs_per_warp + 1];
}

/// pre, and the factor that makes the mixture's root mean square 1; the same in all threads.
struct Mixture {
  float pre[4];
  float factor;
};

__device__ Mixture mixture(const StreamBuffers& b, int row, float scale, float base) {
  constexpr int lanes = 16, groups = enter_threads / lanes;
  __shared__ float parts[groups][lanes];
  const int lane = threadIdx.x % 32, value = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int slices = b.width / mix_slice_columns, share = (slices + groups - 1) / groups;
  const float* partial = b.partial + static_cast<size_t>(row) * slices * mix_values;
  float sum = 0;
  if (value < mix_post_at) {
#pragma unroll 4
    for (int s = group * share; s < min(slices, (group + 1) * share); ++s) {
      sum += partial[s * mix_values + value];
    }
  }
  parts[group][value] = sum;
  __syncthreads();
  sum = parts[0][value];
#pragma unroll
  for (int g = 1; g < groups; ++g) sum += parts[g][value];
  constexpr unsigned all = 0xffffffffu;
  float product[4][4];
#pragma unroll
  for (int h = 0, at = mix_products_at; h < 4; ++h) {
#pragma unroll
    for (int k = h; k < 4; ++k, ++at) product[h][k] = __shfl_sync(all, sum, at);
  }
  const float squares = (product[0][0] + product[1][1]) + (product[2][2] + product[3][3]);
  const float mix = sum / sqrtf(squares / static_cast<float>(4 * b.width) + mixing_epsilon);
  const float own = lane < 4 ? sigmoid(mix * scale + base) + mixing_epsilon : 0.0f;
  Mixture m;
#pragma unroll
  for (int h = 0; h < 4; ++h) m.pre[h] = __shfl_sync(all, own, h);
  float diagonal = 0, rest = 0;
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    diagonal = fmaf(m.pre[h] * m.pre[h], product[h][h], diagonal);
#pragma unroll
    for (int k = h + 1; k < 4; ++k) rest = fmaf(m.pre[h] * m.pre[k], product[h][k], rest);
  }
  const float mean = fmaxf(fmaf(2.0f, rest, diagonal), 0.0f) / static_cast<float>(b.width);
  m.factor = 1.0f / sqrtf(mean + mixing_epsilon);
  return m;
}

__global__ void __launch_bounds__(enter_threads)
    enter_kernel(StreamBuffers b, DeviceMixer mixer, const float* __restrict__ norm) {
  start_successor();
  const int row = blockIdx.y, column = blockIdx.x * mix_slice_columns + static_cast<int>(threadIdx.x);
  const float weight = norm[column], scale = mixer.scale[0], base = mixer.base[threadIdx.x % 4];
  wait_for_predecessor();
  const float* x = b.streams + static_cast<size_t>(row) * 4 * b.width + column;
  float stream[4];
#pragma unroll
  for (int h = 0; h < 4; ++h) stream[h] = x[h * b.width];
  const Mixture m = mixture(b, row, scale, base);
  float y = m.pre[0] * stream[0];
#pragma unroll
  for (int h = 1; h < 4; ++h) y = fmaf(m.pre[h], stream[h], y);
  y = y * m.factor * weight;
  // A warp holds 32 consecutive columns: one rounding block.
  const size_t place = static_cast<size_t>(row) * b.width + column;
  b.normed[place] = y;
  quantize_block_of_warp(y, b.codes + place - threadIdx.x % 32, b.scales + place / 32);
}

}  // namespace

cudaError_t leave_and_mix(const StreamBuffers& b, const float* out, const DeviceMixer* mixer, int rows,
                          cudaStream_t stream) {
  const dim3 grid(b.width / mix_slice_columns, rows);
  const int outputs = mixer == nullptr ? 0 : static_cast<int>(mixer->fn.rows);
  const uint8_t* fn = mixer == nullptr ? nullptr : mixer->fn.quants;
  const auto run = [&](auto* weights) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(weights)>>;
    return launch(leave_and_mix_kernel<T>, grid, slice_threads, 0, stream, b, out, weights, outputs);
  };
  const format::TensorType type = mixer == nullptr ? format::TensorType::f32 : mixer->fn.type;
  if (type == format::TensorType::f16) return run(reinterpret_cast<const __half*>(fn));
  if (type == format::TensorType::bf16) return run(reinterpret_cast<const __nv_bfloat16*>(fn));
  return run(reinterpret_cast<const float*>(fn));
}

cudaError_t enter(const StreamBuffers& b, const DeviceMixer& mixer, const float* norm, int rows,
                  cudaStream_t stream) {
  return launch(enter_kernel, dim3(b.width / mix_slice_columns, rows), enter_threads, 0, stream, b, mixer,
                norm);
}

}  // namespace ds4::cuda
