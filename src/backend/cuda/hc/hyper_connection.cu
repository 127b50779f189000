// What:   mixes four residual streams into a sublayer's input and writes its output back (docs/model.md §4).
// Layout: streams F32 [row][stream][d]; fn [24][4d] as in the file; partial sums [row][slice][25].
// Needs:  d a multiple of 128. Sums have one order, independent of the number of rows.
// Bytes:  fn (786 KB for Flash in F16) + 64 KB of streams a row read and written; 2 * 24 * 4d FLOPs a row.
// Why:    leaving one sublayer and mixing for the next touch the same slice of the streams, so they share a
// kernel; the
//         Sinkhorn iterations run on 16 lanes with shuffles, since one thread would take longer than the
//         whole layer.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/hc/hyper_connection.hpp"

namespace ds4::cuda {
namespace {

constexpr int slice_threads = 256;
constexpr int finish_threads = 512;
constexpr float epsilon = 1e-6f;

__device__ float load_weight(const float* p) {
  return __ldg(p);
}
__device__ float load_weight(const __half* p) {
  return __half2float(__ldg(p));
}
__device__ float load_weight(const __nv_bfloat16* p) {
  return __bfloat162float(__ldg(p));
}

template <class T>
__global__ void __launch_bounds__(slice_threads)
    leave_and_mix_kernel(StreamBuffers b, const float* __restrict__ out, const T* __restrict__ fn,
                         int outputs) {
  __shared__ float slice[4][mix_slice_columns];
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
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* partial = b.partial + (static_cast<size_t>(row) * gridDim.x + blockIdx.x) * mix_values;
  for (int k = warp; k <= outputs; k += slice_threads / 32) {  // k == outputs: the sum of squares
    float sum = 0;
    for (int h = 0; h < 4; ++h) {
      const T* w = fn + static_cast<size_t>(k) * 4 * d + static_cast<size_t>(h) * d + first;
      for (int i = lane; i < mix_slice_columns; i += 32) {
        const float value = slice[h][i];
        sum = fmaf(k == outputs ? value : load_weight(w + i), value, sum);
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[k] = sum;
  }
}

__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// Row and column normalisation of a 4 x 4 matrix held one element a lane in lanes 0..15 (row = lane / 4).
__device__ float sinkhorn(float c) {
  constexpr unsigned all = 0xffffffffu;
  float max = fmaxf(c, __shfl_xor_sync(all, c, 1));
  max = fmaxf(max, __shfl_xor_sync(all, max, 2));
  c = expf(c - max);
  float sum = c + __shfl_xor_sync(all, c, 1);
  sum += __shfl_xor_sync(all, sum, 2);
  c = c / sum + epsilon;
  for (int i = 0; i < 20; ++i) {
    if (i > 0) {
      sum = c + __shfl_xor_sync(all, c, 1);
      sum += __shfl_xor_sync(all, sum, 2);
      c /= sum + epsilon;
    }
    sum = c + __shfl_xor_sync(all, c, 4);
    sum += __shfl_xor_sync(all, sum, 8);
    c /= sum + epsilon;
  }
  return c;
}

// First warp: mix values from the partial sums, then the mixing weights to shared memory and to b.weights.
__device__ void finish_mix(const StreamBuffers& b, const DeviceMixer& mixer, int row, int outputs,
                           float* weights) {
  const int lane = threadIdx.x, slices = b.width / mix_slice_columns;
  const float* partial = b.partial + static_cast<size_t>(row) * slices * mix_values;
  float sum = 0;
  if (lane <= outputs) {
    for (int s = 0; s < slices; ++s) sum += partial[s * mix_values + lane];
  }
  const float squares = __shfl_sync(0xffffffffu, sum, outputs);
  const float mix = sum / sqrtf(squares / static_cast<float>(4 * b.width) + epsilon);
  if (outputs == 4) {
    if (lane < 4) weights[lane] = sigmoid(mix * mixer.scale[0] + mixer.base[lane]) + epsilon;
    return;
  }
  const float value = mix * mixer.scale[lane < 4   ? 0
                                        : lane < 8 ? 1
                                                   : 2] +
                      (lane < 24 ? mixer.base[lane] : 0.0f);
  const float comb = sinkhorn(__shfl_sync(0xffffffffu, value, (lane + 8) % 32));
  if (lane < 4) weights[lane] = sigmoid(value) + epsilon;
  if (lane >= 4 && lane < 8) weights[lane] = 2.0f * sigmoid(value);
  if (lane < 16) weights[8 + lane] = comb;
  __syncwarp();
  if (lane < 24) b.weights[row * 24 + lane] = weights[lane];
}

__global__ void __launch_bounds__(finish_threads)
    enter_kernel(StreamBuffers b, DeviceMixer mixer, const float* __restrict__ norm, int outputs) {
  extern __shared__ float mixed[];  // [d]
  __shared__ float weights[24], reduce[32];
  const int row = blockIdx.x, d = b.width, lane = threadIdx.x % 32;
  if (threadIdx.x < 32) finish_mix(b, mixer, row, outputs, weights);
  __syncthreads();
  const float* x = b.streams + static_cast<size_t>(row) * 4 * d;
  float squares = 0;
  for (int i = threadIdx.x; i < d; i += finish_threads) {
    float y = weights[0] * x[i];
    for (int h = 1; h < 4; ++h) y = fmaf(weights[h], x[h * d + i], y);
    mixed[i] = y;
    squares = fmaf(y, y, squares);
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, reduce) / static_cast<float>(d) + epsilon);
  for (int i = threadIdx.x; i < d;
       i += finish_threads) {  // a warp holds 32 consecutive columns: one rounding block
    const float y = mixed[i] * factor * norm[i];
    const float scale = warp_max(fabsf(y)) / 127.0f;
    const size_t place = static_cast<size_t>(row) * d + i;
    b.normed[place] = y;
    b.codes[place] = static_cast<int8_t>(scale > 0 ? __float2int_rn(y / scale) : 0);
    if (lane == 0) b.scales[place / 32] = scale;
  }
}

cudaError_t enter(const StreamBuffers& b, const DeviceMixer& mixer, const float* norm, int outputs, int rows,
                  cudaStream_t stream) {
  enter_kernel<<<rows, finish_threads, b.width * sizeof(float), stream>>>(b, mixer, norm, outputs);
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
