// Index query heads after their projection: rotated, transformed, rounded to FP4 (docs/model.md §7), by one
// warp.
#pragma once

#include "backend/cuda/attention/rope.cuh"
#include "backend/cuda/attention/row_codec.cuh"

namespace ds4::cuda {

/// Lane l holds elements 4 l .. 4 l + 3 of the 128; `angles` are those of the position.
__device__ inline void prepare_index_query(float (&v)[4], const float2* angles, int lane) {
  if (lane >= 16) {  // elements 64 and up
    rotate(v[0], v[1], angles[2 * (lane - 16)]);
    rotate(v[2], v[3], angles[2 * (lane - 16) + 1]);
  }
  round_index_query(v, lane);
}

}  // namespace ds4::cuda
