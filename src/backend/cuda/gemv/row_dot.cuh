// Dot products of weight rows by a warp: the loop that all products share, and its reduction.
//
// The order of every (row, token) result: lane l adds its chunks l, l + 32, ... in ascending order; then the
// lanes are added in pairs at distance 16, 8, 4, 2, 1. Nothing else (rows per warp, tokens, unrolling) can
// change a bit of it.
#pragma once

#include <cstdint>

#include "backend/cuda/gemv/row_formats.cuh"

namespace ds4::cuda {

template <TensorType type>
__device__ __forceinline__ WeightRow weight_row(const DeviceMatrix& m, size_t row) {
  const size_t first = row * m.cols;
  switch (type) {
    case TensorType::f32:
      return {m.quants + first * 4, nullptr, nullptr};
    case TensorType::f16:
    case TensorType::bf16:
      return {m.quants + first * 2, nullptr, nullptr};
    case TensorType::q8_0:
      return {m.quants + first, m.scales + first / 32 * 2, nullptr};
    case TensorType::mxfp4:
      return {m.quants + first / 2, m.scales + first / 32, nullptr};
    case TensorType::q4_k:
      return {m.quants + first / 2, m.scales + first / 16, nullptr};
    case TensorType::q2_k:
      return {m.quants + first / 4, m.scales + first / 16, m.extras + first / 64};
    default:  // IQ2_XXS
      return {m.quants + first / 4, nullptr, m.extras + first / 128};
  }
}

/// `column` is a multiple of 32.
__device__ __forceinline__ InputRow input_row(const DeviceActivations& x, size_t row, size_t column) {
  const size_t at = row * x.stride + column;
  return {x.f32 + at, x.codes + at, x.scales + at / 32};
}

/// The weights a warp reads, step after step (32 chunks of each of `rows` rows), tile after tile; runs ahead
/// of the products, so that `depth` steps are in flight. Every tile has the same chunks [begin, end).
template <TensorType type, int rows>
class WeightStream {
 public:
  using Raw = typename RowFormat<type>::Raw;

  __device__ __forceinline__ WeightStream(const DeviceMatrix& matrix, uint32_t first_tile, uint32_t stride,
                                          uint32_t begin, uint32_t end)
      : matrix_(matrix), tile_(first_tile), stride_(stride), begin_(begin), end_(end), first_(begin) {
    point();
  }

  __device__ __forceinline__ void load(Raw (&raw)[rows]) {
    if (tile_ * rows >= matrix_.rows) return;
    const uint32_t chunk = first_ + threadIdx.x % 32;
    if (chunk < end_) {
#pragma unroll
      for (int r = 0; r < rows; ++r) raw[r] = RowFormat<type>::load(row_[r], chunk);
    }
    first_ += 32;
    if (first_ < end_) return;
    first_ = begin_;
    tile_ += stride_;
    point();
  }

 private:
  __device__ __forceinline__ void point() {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      row_[r] = weight_row<type>(matrix_, min(tile_ * rows + r, matrix_.rows - 1));
    }
  }

  const DeviceMatrix& matrix_;
  uint32_t tile_, stride_, begin_, end_, first_;
  WeightRow row_[rows];
};

/// sums[row][token] += one step: the lane's chunk of every row, already loaded, times the tokens. Token t
/// reads the activations of row min(t, last_token) of `x`, whose rows lie `stride` columns apart.
template <TensorType type, int rows, int tokens>
__device__ __forceinline__ void accumulate_step(const typename RowFormat<type>::Raw (&raw)[rows],
                                                uint32_t chunk, const InputRow& x, uint32_t stride,
                                                uint32_t last_token, const uint8_t* tables,
                                                float (&sums)[rows * tokens]) {
  using Format = RowFormat<type>;
  typename Format::Weights weights[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) weights[r] = Format::decode(raw[r], chunk, tables);
#pragma unroll
  for (int t = 0; t < tokens; ++t) {
    const uint32_t at = t == 0 ? 0u : min(static_cast<uint32_t>(t), last_token) * stride;
    const typename Format::Inputs in = Format::inputs({x.f32 + at, x.codes + at, x.scales + at / 32}, chunk);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      sums[r * tokens + t] = Format::accumulate(weights[r], in, sums[r * tokens + t]);
    }
  }
}

/// sums[row][token] += row . token over chunks [begin, end). Token t reads the activations of row min(t,
/// last_token) of `x`, whose rows lie `stride` columns apart.
template <TensorType type, int rows, int tokens, int unroll>
__device__ __forceinline__ void accumulate_rows(const WeightRow (&w)[rows], const InputRow& x,
                                                uint32_t stride, uint32_t last_token, uint32_t begin,
                                                uint32_t end, const uint8_t* tables,
                                                float (&sums)[rows * tokens]) {
  using Format = RowFormat<type>;
#pragma unroll 1
  for (uint32_t first = begin + threadIdx.x % 32; first < end; first += 32 * unroll) {
    typename Format::Raw raw[unroll][rows];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const uint32_t chunk = first + 32 * u;
      if (chunk < end) {
#pragma unroll
        for (int r = 0; r < rows; ++r) raw[u][r] = Format::load(w[r], chunk);
      }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const uint32_t chunk = first + 32 * u;
      if (chunk < end) {
        accumulate_step<type, rows, tokens>(raw[u], chunk, x, stride, last_token, tables, sums);
      }
    }
  }
}

/// Sums `count` (a power of two up to 64) values over the lanes. While more than one is left, a step hands
/// half of them to the partner lane, so all take one shuffle for each pair; the additions are those of a
/// butterfly. Afterwards lane l holds sums 2l, 2l + 1 (count 64), or sum l / (32 / count) in v[0].
template <int count, int left = count, int mask = 16>
__device__ __forceinline__ void reduce_warp(float (&v)[count]) {
  if constexpr (mask == 0) {
    return;
  } else if constexpr (left > 1) {
    const bool upper = (threadIdx.x & mask) != 0;
#pragma unroll
    for (int i = 0; i < left / 2; ++i) {
      const float keep = upper ? v[i + left / 2] : v[i];
      const float send = upper ? v[i] : v[i + left / 2];
      v[i] = __fadd_rn(keep, __shfl_xor_sync(~0u, send, mask));
    }
    reduce_warp<count, left / 2, mask / 2>(v);
  } else {
    v[0] = __fadd_rn(v[0], __shfl_xor_sync(~0u, v[0], mask));
    reduce_warp<count, 1, mask / 2>(v);
  }
}

/// Calls store(index, value) once for every sum, by the lane that holds it.
template <int count, class Store>
__device__ __forceinline__ void for_each_reduced(const float (&v)[count], const Store& store) {
  const uint32_t lane = threadIdx.x % 32;
  if constexpr (count == 64) {
    store(2 * lane, v[0]);
    store(2 * lane + 1, v[1]);
  } else if (lane % (32 / count) == 0) {
    store(lane / (32 / count), v[0]);
  }
}

}  // namespace ds4::cuda
