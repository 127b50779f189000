// Functions that turn mix values into mixing weights (docs/model.md §4).
#pragma once

namespace ds4::cuda {

inline constexpr float mixing_epsilon = 1e-6f;

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// Row and column normalisation of a 4 x 4 matrix held one element a lane in lanes 0..15 (row = lane / 4).
// Forty dependent steps: the fast division (2 ulp) halves the time of the chain, and normalising again
// removes its error.
__device__ inline float sinkhorn(float c) {
  constexpr unsigned all = 0xffffffffu;
  float max = fmaxf(c, __shfl_xor_sync(all, c, 1));
  max = fmaxf(max, __shfl_xor_sync(all, max, 2));
  c = expf(c - max);
  float sum = c + __shfl_xor_sync(all, c, 1);
  sum += __shfl_xor_sync(all, sum, 2);
  c = __fdividef(c, sum) + mixing_epsilon;
  for (int i = 0; i < 20; ++i) {
    if (i > 0) {
      sum = c + __shfl_xor_sync(all, c, 1);
      sum += __shfl_xor_sync(all, sum, 2);
      c = __fdividef(c, sum + mixing_epsilon);
    }
    sum = c + __shfl_xor_sync(all, c, 4);
    sum += __shfl_xor_sync(all, sum, 8);
    c = __fdividef(c, sum + mixing_epsilon);
  }
  return c;
}

// The same, all in the registers of one thread: no shuffles in the chain of forty steps.
__device__ inline void sinkhorn(float (&c)[16]) {
#pragma unroll
  for (int j = 0; j < 16; j += 4) {
    const float max = fmaxf(fmaxf(c[j], c[j + 1]), fmaxf(c[j + 2], c[j + 3]));
#pragma unroll
    for (int k = 0; k < 4; ++k) c[j + k] = expf(c[j + k] - max);
    const float sum = (c[j] + c[j + 1]) + (c[j + 2] + c[j + 3]);
#pragma unroll
    for (int k = 0; k < 4; ++k) c[j + k] = __fdividef(c[j + k], sum) + mixing_epsilon;
  }
#pragma unroll 1
  for (int i = 0; i < 20; ++i) {
    if (i > 0) {
#pragma unroll
      for (int j = 0; j < 16; j += 4) {
        const float factor = __fdividef(1.0f, (c[j] + c[j + 1]) + (c[j + 2] + c[j + 3]) + mixing_epsilon);
#pragma unroll
        for (int k = 0; k < 4; ++k) c[j + k] *= factor;
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float factor = __fdividef(1.0f, (c[k] + c[4 + k]) + (c[8 + k] + c[12 + k]) + mixing_epsilon);
#pragma unroll
      for (int j = 0; j < 16; j += 4) c[j + k] *= factor;
    }
  }
}

}  // namespace ds4::cuda
