// Down products of several tokens in the formats of published files: routed Q2_K, shared Q8_0.
#pragma once

#include "backend/cuda/gemv/row_dot.cuh"
#include "backend/cuda/moe/experts.hpp"

namespace ds4::cuda {

/// `rows` output rows of a group of up to four tokens by a warp. The routed experts of the tokens are one
/// list, of which `depth` steps of 32 chunks are in flight across experts and tokens; a row of an expert has
/// `steps` steps.
template <int rows, int depth, int steps>
class SeveralTokensDown {
 public:
  static constexpr int group_tokens = 4;
  static constexpr uint32_t max_columns = steps * 32 * 64, max_experts = 32 / group_tokens;

  /// Reads the routing.
  __device__ __forceinline__ SeveralTokensDown(const ExpertsDown& args, uint32_t first_token, uint32_t count,
                                               uint32_t row)
      : args_(args),
        first_token_(first_token),
        count_(count),
        row_(row),
        total_(count * args.experts_per_token),
        chunks_(args.down.cols / Routed::chunk_columns) {
    if (lane() < total_) {
      id_of_lane_ = __ldcg(args.ids + size_t{first_token} * args.experts_per_token + lane());
    }
  }

  /// The first routed weights, which need no activations.
  __device__ __forceinline__ void prefetch() {
#pragma unroll
    for (int j = 0; j < depth; ++j) load(raw_[j]);
  }

  /// sums[row][token]: in each lane the routed experts ascending, then the shared one.
  __device__ __forceinline__ void multiply(float (&sums)[rows * group_tokens]) {
    shared(sums);
    float of_token[rows] = {};
    uint32_t token = 0, expert = 0, slot = 0;  // slot: of the tokens' routed experts
    int step = 0;
#pragma unroll 1
    while (slot < total_) {
#pragma unroll
      for (int j = 0; j < depth; ++j) {
        if (slot < total_) {
          add(raw_[j], slot + token, step, of_token);
          load(raw_[j]);
          if (++step == steps) {
            step = 0;
            ++slot;
            if (++expert == args_.experts_per_token) {
              finish_token(token, of_token, sums);
              expert = 0;
              ++token;
            }
          }
        }
      }
    }
  }

 private:
  using Routed = RowFormat<TensorType::q2_k>;
  using Shared = RowFormat<TensorType::q8_0>;

  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % 32; }

  /// The tokens share the weights.
  __device__ __forceinline__ void shared(float (&sums)[rows * group_tokens]) const {
    WeightRow w[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      w[r] = weight_row<TensorType::q8_0>(args_.shared_down, min(row_ + r, args_.outputs - 1));
    }
    const uint32_t slots = args_.experts_per_token + 1;
    const InputRow x = input_row(args_.mid, size_t{first_token_} * slots + slots - 1, 0);
    accumulate_rows<TensorType::q8_0, rows, group_tokens, rows <= 2 ? 2 : 1>(
        w, x, args_.mid.stride * slots, count_ - 1, 0, args_.shared_down.cols / Shared::chunk_columns,
        nullptr, sums);
  }

  __device__ __forceinline__ void finish_token(uint32_t token, float (&of_token)[rows],
                                               float (&sums)[rows * group_tokens]) const {
#pragma unroll
    for (int i = 0; i < rows * group_tokens; ++i) {
      if (i % group_tokens == static_cast<int>(token)) {
        sums[i] = __fadd_rn(of_token[i / group_tokens], sums[i]);
      }
    }
#pragma unroll
    for (float& sum : of_token) sum = 0.0f;
  }

  /// The next step of the list.
  __device__ __forceinline__ void load(Routed::Raw (&raw)[rows]) {
    if (next_slot_ >= total_) return;
    const auto expert = static_cast<size_t>(__shfl_sync(~0u, id_of_lane_, static_cast<int>(next_slot_)));
    const uint32_t chunk = 32 * next_step_ + lane();
    if (chunk < chunks_) {
      const WeightRow first = weight_row<TensorType::q2_k>(args_.down, expert * args_.outputs + row_);
      const uint32_t columns = args_.down.cols;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const uint32_t below = row_ + r < args_.outputs ? static_cast<uint32_t>(r) * columns : 0;
        raw[r] = Routed::load(
            {first.quants + below / 4, first.scales + below / 16, first.extras + below / 64}, chunk);
      }
    }
    if (++next_step_ < steps) return;
    next_step_ = 0;
    ++next_slot_;
  }

  __device__ __forceinline__ void add(const Routed::Raw (&raw)[rows], uint32_t slot_of_group, int step,
                                      float (&sums)[rows]) const {
    const uint32_t chunk = 32 * step + lane();
    if (chunk >= chunks_) return;
    const uint32_t slot = first_token_ * (args_.experts_per_token + 1) + slot_of_group;
    const InputRow x = input_row(args_.mid, slot, 0);
    accumulate_step<TensorType::q2_k, rows, 1>(raw, chunk, x, 0, 0, nullptr, sums);
  }

  const ExpertsDown& args_;
  const uint32_t first_token_, count_, row_;
  const uint32_t total_;   // routed slots of the tokens
  const uint32_t chunks_;  // of a routed row
  int id_of_lane_ = 0;
  uint32_t next_slot_ = 0;
  int next_step_ = 0;
  Routed::Raw raw_[depth][rows];
};

}  // namespace ds4::cuda
