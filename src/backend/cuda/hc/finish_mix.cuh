// The slow end of a sublayer's mix values, the Sinkhorn iterations: needed only when the sublayer's output is
// written back, so that a block of some kernel in between computes it beside other work.
#pragma once

#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/hc/hyper_connection.hpp"
#include "backend/cuda/hc/mixing.cuh"

namespace ds4::cuda {

/// Products of streams h <= k, in the order (0, 0), (0, 1) .. (3, 3), follow the four values of pre in a
/// slice's sums; then post and comb. What enter() needs comes first.
inline constexpr int mix_products_at = 4, mix_post_at = 14, mix_comb_at = 18;

/// post and comb of a row from the sums of leave_and_mix(). All threads of the block call this, 32 to 1024 of
/// them; `parts` is theirs.
__device__ inline void finish_mix(const MixFinish& m, int row, float (*parts)[32]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const float* partial = m.partial + static_cast<size_t>(row) * m.slices * mix_values;
  // Lanes 0..19 take post and comb, 20..23 the squares of the streams.
  constexpr int squares = 20;
  const int diagonal = lane == 20 ? 0 : lane == 21 ? 4 : lane == 22 ? 7 : 9;
  const int value = lane < squares ? mix_post_at + lane : mix_products_at + diagonal;
  float sum = 0;
  for (int s = warp; s < m.slices; s += warps) sum += partial[s * mix_values + value];
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = 0;
  for (int w = 0; w < warps; ++w) sum += parts[w][lane];
  float square = __shfl_sync(0xffffffffu, sum, squares);
  for (int h = 1; h < 4; ++h) square += __shfl_sync(0xffffffffu, sum, squares + h);
  const float mix =
      sum / sqrtf(square / static_cast<float>(4 * m.slices * mix_slice_columns) + mixing_epsilon);
  const float x = mix * m.mixer.scale[lane < 4 ? 1 : 2] + m.mixer.base[4 + min(lane, 19)];
  float c[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) c[i] = __shfl_sync(0xffffffffu, x, 4 + i);
  sinkhorn(c);
  float out = 2.0f * sigmoid(x);
#pragma unroll
  for (int i = 0; i < 16; ++i) out = lane == 4 + i ? c[i] : out;
  if (lane < 20) m.weights[row * 20 + lane] = out;
}

}  // namespace ds4::cuda
