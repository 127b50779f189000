// Gate and up products of one token in the formats of published files: routed IQ2_XXS, shared Q8_0.
#pragma once

#include "backend/cuda/gemv/row_dot.cuh"
#include "backend/cuda/moe/experts.hpp"

namespace ds4::cuda {

inline constexpr float swiglu_limit = 10.0f;

/// Comparisons instead of fminf() and fmaxf(), which would make a number of NaN.
__device__ __forceinline__ float swiglu(float gate, float up, float weight) {
  const float g = gate > swiglu_limit ? swiglu_limit : gate;
  const float u = up > swiglu_limit ? swiglu_limit : up < -swiglu_limit ? -swiglu_limit : up;
  const float silu = __fdiv_rn(g, __fadd_rn(1.0f, expf(-g)));
  return __fmul_rn(__fmul_rn(silu, u), weight);
}

/// A warp's items are first, first + stride, ...
struct WorkItems {
  uint32_t first, stride;
};

/// SwiGLU costs as much for one lane as for 32: lane i keeps the sums of the warp's result i until 32 are
/// there.
class RoutedResults {
 public:
  /// The same sums in all lanes: of row `row` of a token's expert `routed`, counted over the tokens.
  __device__ __forceinline__ void add(const ExpertsGateUp& args, float gate, float up, uint32_t routed,
                                      uint32_t token, uint32_t row) {
    if (threadIdx.x % 32 == count_) {
      gate_ = gate;
      up_ = up;
      routed_ = routed;
      place_ = (size_t{routed} + token) * args.features + row;
    }
    if (++count_ == 32) store(args);
  }
  __device__ __forceinline__ void store(const ExpertsGateUp& args) {
    if (threadIdx.x % 32 < count_) args.mid[place_] = swiglu(gate_, up_, __ldcg(args.weights + routed_));
    count_ = 0;
  }

 private:
  float gate_ = 0.0f, up_ = 0.0f;
  uint32_t routed_ = 0, count_ = 0;
  size_t place_ = 0;
};

/// One token, routed IQ2_XXS and shared Q8_0. A warp's items are rows of the shared expert, each the gate row
/// and the up row in steps of 32 chunks, then pairs of neighbouring rows of the first routed expert, the
/// second, ...; two gate rows and two up rows, in `steps` steps. The weights in flight, four shared steps or
/// two routed ones, pass from item to item and from the shared expert to the routed ones: both formats are
/// loaded as 16 bytes and an F16 scale, so that they share the registers. With two steps every lane meets the
/// same activations in every item and keeps them.
template <int steps>
class OneTokenGateUp {
 public:
  __device__ __forceinline__ OneTokenGateUp(const ExpertsGateUp& args, const uint8_t* tables,
                                            const WorkItems& work)
      : args_(args), tables_(tables), work_(work), chunks_(args.gate.cols / Routed::chunk_columns) {}

  /// The first steps of the shared expert, which need no routing.
  __device__ __forceinline__ void prefetch() {
#pragma unroll
    for (int j = 0; j < shared_depth; ++j) load_shared(work_.first, 32u * j, raw_[j]);
  }

  /// After prefetch(). The routed items follow in the same buffers.
  __device__ __forceinline__ void shared() {
    if (lane() < args_.experts_per_token) id_of_lane_ = __ldcg(args_.ids + lane());
    next_ = first_routed();
    const uint32_t chunks = args_.shared_gate.cols / Shared::chunk_columns;
    const InputRow x = input_row(args_.x, 0, 0);
#pragma unroll 1
    for (uint32_t row = work_.first; row < args_.features; row += work_.stride) {
      float sums[2] = {};
#pragma unroll 1
      for (uint32_t first = 0; first < chunks; first += 32 * shared_depth) {
        const bool last = first + 32 * shared_depth >= chunks;
#pragma unroll
        for (int j = 0; j < shared_depth; ++j) {
          const uint32_t chunk = first + 32 * j + lane();
          if (chunk < chunks) {
            accumulate_step<TensorType::q8_0, 2, 1>(raw_[j], chunk, x, 0, 0, nullptr, sums);
          }
          if (!last) {
            load_shared(row, first + 32 * (shared_depth + j), raw_[j]);
          } else if (row + work_.stride < args_.features) {
            load_shared(row + work_.stride, 32u * j, raw_[j]);
          } else if (j % 2 == 1) {
            load_routed(j / 2);
          }
        }
      }
      reduce_warp(sums);
      const float up = __shfl_xor_sync(~0u, sums[0], 16);
      if (lane() == 0) {
        args_.mid[size_t{args_.experts_per_token} * args_.features + row] = swiglu(sums[0], up, 1.0f);
      }
    }
    if (work_.first < args_.features) return;
    load_routed(0);
    load_routed(1);
  }

  __device__ __forceinline__ void routed() {
    typename Routed::Inputs x[steps];
    const InputRow input = input_row(args_.x, 0, 0);
    if constexpr (steps == 2) {
#pragma unroll
      for (int s = 0; s < steps; ++s) x[s] = Routed::inputs(input, min(32 * s + lane(), chunks_ - 1));
    }
    RoutedResults results;
#pragma unroll 1
    for (Item item = first_routed(); item.k < args_.experts_per_token; item = after(item)) {
      float sums[rows] = {};  // gate, gate, up, up
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        const uint32_t chunk = 32 * s + lane();
        if (chunk < chunks_) {
          if constexpr (steps != 2) x[s] = Routed::inputs(input, chunk);
#pragma unroll
          for (int r = 0; r < rows; ++r) {
            const ScaledChunk& raw = raw_[2 * (s % 2) + r / 2][r % 2];
            sums[r] = Routed::accumulate(Routed::decode(raw, chunk, tables_), x[s], sums[r]);
          }
        }
        load_routed(s % 2);
      }
      reduce_warp(sums);  // sum r in lanes 8 r .. 8 r + 7
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        results.add(args_, __shfl_sync(~0u, sums[0], 8 * r), __shfl_sync(~0u, sums[0], 16 + 8 * r), item.k, 0,
                    2 * item.pair + r);
      }
    }
    results.store(args_);
  }

 private:
  using Routed = RowFormat<TensorType::iq2_xxs>;
  using Shared = RowFormat<TensorType::q8_0>;
  static constexpr int shared_depth = 4, rows = 4;
  static_assert(steps % 2 == 0);

  struct Item {
    uint32_t k, pair;
  };

  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ Item normal(Item item) const {
    while (item.pair >= args_.features / 2) item = {item.k + 1, item.pair - args_.features / 2};
    return item;
  }
  __device__ __forceinline__ Item first_routed() const { return normal({0, work_.first}); }
  __device__ __forceinline__ Item after(Item item) const {
    return normal({item.k, item.pair + work_.stride});
  }

  __device__ __forceinline__ void load_shared(uint32_t row, uint32_t first, ScaledChunk (&raw)[2]) const {
    const uint32_t chunk = first + lane();
    if (row >= args_.features || chunk >= args_.shared_gate.cols / Shared::chunk_columns) return;
    raw[0] = Shared::load(weight_row<TensorType::q8_0>(args_.shared_gate, row), chunk);
    raw[1] = Shared::load(weight_row<TensorType::q8_0>(args_.shared_up, row), chunk);
  }

  /// The next step to load, into half `half` of the buffers.
  __device__ __forceinline__ void load_routed(int half) {
    if (next_.k >= args_.experts_per_token) return;
    if (next_step_ == 0) {
      const int id = __shfl_sync(~0u, id_of_lane_, static_cast<int>(next_.k));
      const size_t row = static_cast<size_t>(id) * args_.features + 2 * next_.pair;
      gate_ = weight_row<TensorType::iq2_xxs>(args_.gate, row);
      up_ = weight_row<TensorType::iq2_xxs>(args_.up, row);
    }
    const uint32_t chunk = 32 * next_step_ + lane();
    if (chunk < chunks_) {
      const size_t quants = args_.gate.cols / 4, extras = args_.gate.cols / 128;  // bytes to the next row
      ScaledChunk(&gate)[2] = raw_[2 * half];
      ScaledChunk(&up)[2] = raw_[2 * half + 1];
      gate[0] = Routed::load(gate_, chunk);
      gate[1] = Routed::load({gate_.quants + quants, nullptr, gate_.extras + extras}, chunk);
      up[0] = Routed::load(up_, chunk);
      up[1] = Routed::load({up_.quants + quants, nullptr, up_.extras + extras}, chunk);
    }
    if (++next_step_ < steps) return;
    next_step_ = 0;
    next_ = after(next_);
  }

  const ExpertsGateUp& args_;
  const uint8_t* tables_;
  const WorkItems work_;
  const uint32_t chunks_;  // of a routed row
  int id_of_lane_ = 0;
  Item next_{0, 0};  // to load
  uint32_t next_step_ = 0;
  WeightRow gate_, up_;
  ScaledChunk raw_[shared_depth][2];
};

}  // namespace ds4::cuda
