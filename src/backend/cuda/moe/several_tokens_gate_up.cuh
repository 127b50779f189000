// Gate and up products of 2 to 16 tokens in the formats of published files: routed IQ2_XXS, shared Q8_0.
#pragma once

#include "backend/cuda/moe/one_token_gate_up.cuh"

namespace ds4::cuda {

/// Division by a count up to 512 of numbers below 2^22, by a multiplication.
struct Divisor {
  uint32_t value, reciprocal;
  __device__ explicit Divisor(uint32_t count) : value(count), reciprocal(~0u / count + 1) {}
  __device__ uint32_t quotient(uint32_t n) const { return value == 1 ? n : __umulhi(n, reciprocal); }
};

/// The IQ2_XXS pairs of several tokens' kernels lie here in the shared window (iq2_group_at()).
inline constexpr uint32_t pairs_at = 65536;

/// The codes and scales of all tokens in shared memory, where both formats find them without bank conflicts:
/// 16 codes j of IQ2_XXS chunk 32 s + l at plane 4 s + j, place l; planes are two places longer than that. As
/// many tokens as there is room for lie below the pairs, the others above.
template <int steps>
struct StagedInputs {
  static constexpr uint32_t plane_bytes = 34 * 16;
  static constexpr uint32_t codes_bytes = steps * 4 * plane_bytes;
  static constexpr uint32_t token_bytes = codes_bytes + steps * 32 * 2 * sizeof(float);
  static constexpr uint32_t max_columns = steps * 32 * 64;

  uint8_t* base;
  uint32_t below;  // tokens
  uint32_t gap;    // bytes from the end of those below to the first above

  /// Every thread of the block calls this, then the block synchronises.
  __device__ __forceinline__ void fill(const DeviceActivations& x, uint32_t columns, uint32_t tokens) const {
    const uint32_t pieces = columns / 16, blocks = columns / 32;
    for (uint32_t t = 0; t < tokens; ++t) {
      const InputRow row = input_row(x, t, 0);
      for (uint32_t i = threadIdx.x; i < pieces; i += blockDim.x) {
        *reinterpret_cast<uint4*>(token_at(t) + place(i)) =
            __ldcg(reinterpret_cast<const uint4*>(row.codes) + i);
      }
      for (uint32_t i = threadIdx.x; i < blocks; i += blockDim.x) scales(t)[i] = __ldcg(row.scales + i);
    }
  }
  /// `step` and the lane make the chunk.
  __device__ __forceinline__ RowFormat<TensorType::iq2_xxs>::Inputs routed(uint32_t token, int step) const {
    const uint32_t lane = threadIdx.x % 32;
    const uint8_t* codes = token_at(token) + step * 4 * plane_bytes + lane * 16;
    const float2 d = *reinterpret_cast<const float2*>(scales(token) + (32 * step + lane) * 2);
    const auto piece = [&](uint32_t j) { return *reinterpret_cast<const int4*>(codes + j * plane_bytes); };
    return {{piece(0), piece(1), piece(2), piece(3)}, {d.x, d.y}};
  }
  __device__ __forceinline__ RowFormat<TensorType::q8_0>::Inputs shared(uint32_t token,
                                                                        uint32_t chunk) const {
    return {*reinterpret_cast<const int4*>(token_at(token) + place(chunk)), scales(token)[chunk / 2]};
  }

 private:
  __device__ __forceinline__ uint8_t* token_at(uint32_t token) const {
    return base + token * token_bytes + (token < below ? 0 : gap);
  }
  static __device__ __forceinline__ uint32_t place(uint32_t piece) {
    return (piece / 128 * 4 + piece % 4) * plane_bytes + piece / 4 % 32 * 16;
  }
  __device__ __forceinline__ float* scales(uint32_t token) const {
    return reinterpret_cast<float*>(token_at(token) + codes_bytes);
  }
};

/// Experts with one or two of the slots that chose them, so that weights are decoded once for two tokens.
struct ExpertGroups {
  static constexpr uint32_t max_slots = 384, none = 0xffff;
  uint32_t ids[max_slots];
  uint2 group[max_slots];  // expert; first slot, second << 16
  uint32_t counts[max_slots / 32];
  uint32_t count;

  /// All threads of a block of at least `max_slots` call this; afterwards the groups are there.
  __device__ __forceinline__ void find(const int32_t* slots, uint32_t slot_count) {
    const uint32_t t = threadIdx.x, warp = t / 32, lane = t % 32;
    if (t < slot_count) ids[t] = static_cast<uint32_t>(__ldcg(slots + t));
    __syncthreads();
    uint32_t before = 0, next = none;
    if (t < slot_count) {
      const uint32_t mine = ids[t];
#pragma unroll 4
      for (uint32_t j = 0; j < slot_count; ++j) {
        const bool same = ids[j] == mine;
        if (same && j < t) ++before;
        if (same && j > t) next = min(next, j);
      }
    }
    const bool leads = t < slot_count && before % 2 == 0;
    const uint32_t votes = __ballot_sync(~0u, leads);
    if (lane == 0 && warp < max_slots / 32) counts[warp] = __popc(votes);
    __syncthreads();
    uint32_t at = __popc(votes & ((1u << lane) - 1)), total = 0;
#pragma unroll
    for (uint32_t w = 0; w < max_slots / 32; ++w) {
      if (w < warp) at += counts[w];
      total += counts[w];
    }
    if (leads) group[at] = make_uint2(ids[t], t | next << 16);
    if (t == 0) count = total;
    __syncthreads();
  }
};

/// As OneTokenGateUp, for up to `tokens` tokens: an item of the shared expert is a gate row and an up row for
/// all tokens, one of the routed experts a group's pair of gate rows and pair of up rows.
template <int steps, int tokens>
class SeveralTokensGateUp {
 public:
  __device__ __forceinline__ SeveralTokensGateUp(const ExpertsGateUp& args, const StagedInputs<steps>& inputs,
                                                 const ExpertGroups& groups, const WorkItems& work)
      : args_(args),
        inputs_(inputs),
        groups_(groups),
        work_(work),
        chunks_(args.gate.cols / Routed::chunk_columns) {}

  /// The first steps of the shared expert, which need neither routing nor activations.
  __device__ __forceinline__ void prefetch() {
#pragma unroll
    for (int j = 0; j < shared_depth; ++j) load_shared(work_.first, 32u * j, raw_[j]);
  }

  /// After prefetch(). The routed items follow in the same buffers.
  __device__ __forceinline__ void shared() {
    next_ = first_routed();
    const uint32_t chunks = args_.shared_gate.cols / Shared::chunk_columns;
#pragma unroll 1
    for (uint32_t row = work_.first; row < args_.features; row += work_.stride) {
      float sums[2 * tokens] = {};
#pragma unroll 1
      for (uint32_t first = 0; first < chunks; first += 32 * shared_depth) {
        const bool last = first + 32 * shared_depth >= chunks;
#pragma unroll
        for (int j = 0; j < shared_depth; ++j) {
          add_shared(raw_[j], first + 32 * j + lane(), chunks, sums);
          if (!last) {
            load_shared(row, first + 32 * (shared_depth + j), raw_[j]);
          } else if (row + work_.stride < args_.features) {
            load_shared(row + work_.stride, 32u * j, raw_[j]);
          } else if (j % 2 == 1) {
            load_routed(j / 2);
          }
        }
      }
      store_shared(row, sums);
    }
    if (work_.first < args_.features) return;
    load_routed(0);
    load_routed(1);
  }

  __device__ __forceinline__ void routed() {
    RoutedResults results;
#pragma unroll 1
    for (Item item = first_routed(); item.group < groups_.count; item = after(item)) {
      const uint32_t slots = groups_.group[item.group].y;
      if (slots >> 16 == ExpertGroups::none) {
        const uint32_t slot[1] = {slots & 0xffff};
        multiply(item.pair, slot, results);
      } else {
        const uint32_t slot[2] = {slots & 0xffff, slots >> 16};
        multiply(item.pair, slot, results);
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
    uint32_t group, pair;
  };

  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ Item normal(Item item) const {
    while (item.pair >= args_.features / 2) item = {item.group + 1, item.pair - args_.features / 2};
    return item;
  }
  __device__ __forceinline__ Item first_routed() const { return normal({0, work_.first}); }
  __device__ __forceinline__ Item after(Item item) const {
    return normal({item.group, item.pair + work_.stride});
  }

  __device__ __forceinline__ void add_shared(const ScaledChunk (&raw)[2], uint32_t chunk, uint32_t chunks,
                                             float (&sums)[2 * tokens]) const {
    if (chunk >= chunks) return;
    const Shared::Weights gate = Shared::decode(raw[0], chunk, nullptr);
    const Shared::Weights up = Shared::decode(raw[1], chunk, nullptr);
#pragma unroll
    for (int t = 0; t < tokens; ++t) {
      const Shared::Inputs in = inputs_.shared(min(static_cast<uint32_t>(t), args_.tokens - 1), chunk);
      sums[t] = Shared::accumulate(gate, in, sums[t]);
      sums[tokens + t] = Shared::accumulate(up, in, sums[tokens + t]);
    }
  }

  __device__ __forceinline__ void store_shared(uint32_t row, float (&sums)[2 * tokens]) const {
    reduce_warp(sums);
    const float up = __shfl_xor_sync(~0u, sums[0], 16);  // lanes 0..15 hold gate sums, 16..31 up sums
    const uint32_t token = lane() / (16 / tokens);
    if (lane() >= 16 || lane() % (16 / tokens) != 0 || token >= args_.tokens) return;
    const size_t slot = size_t{token + 1} * (args_.experts_per_token + 1) - 1;
    args_.mid[slot * args_.features + row] = swiglu(sums[0], up, 1.0f);
  }

  /// A pair of rows for the tokens of the slots.
  template <int count>
  __device__ __forceinline__ void multiply(uint32_t pair, const uint32_t (&slot)[count],
                                           RoutedResults& results) {
    const Divisor k_count(args_.experts_per_token);
    uint32_t token[count];
#pragma unroll
    for (int t = 0; t < count; ++t) token[t] = k_count.quotient(slot[t]);
    float sums[rows * count] = {};  // gate, gate, up, up
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const uint32_t chunk = 32 * s + lane();
      if (chunk < chunks_) {
        Routed::Inputs x[count];
#pragma unroll
        for (int t = 0; t < count; ++t) x[t] = inputs_.routed(token[t], s);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const Routed::Weights w =
              Routed::decode_at(raw_[2 * (s % 2) + r / 2][r % 2], pairs_at + 4 * lane());
#pragma unroll
          for (int t = 0; t < count; ++t) {
            sums[r * count + t] = Routed::accumulate(w, x[t], sums[r * count + t]);
          }
        }
      }
      load_routed(s % 2);
    }
    reduce_warp(sums);  // sum i in 8 / count lanes from 8 / count * i on
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int t = 0; t < count; ++t) {
        const int gate = 8 / count * (r * count + t);
        results.add(args_, __shfl_sync(~0u, sums[0], gate), __shfl_sync(~0u, sums[0], gate + 16), slot[t],
                    token[t], 2 * pair + r);
      }
    }
  }

  __device__ __forceinline__ void load_shared(uint32_t row, uint32_t first, ScaledChunk (&raw)[2]) const {
    const uint32_t chunk = first + lane();
    if (row >= args_.features || chunk >= args_.shared_gate.cols / Shared::chunk_columns) return;
    raw[0] = Shared::load(weight_row<TensorType::q8_0>(args_.shared_gate, row), chunk);
    raw[1] = Shared::load(weight_row<TensorType::q8_0>(args_.shared_up, row), chunk);
  }

  /// The next step to load, into half `half` of the buffers.
  __device__ __forceinline__ void load_routed(int half) {
    if (next_.group >= groups_.count) return;
    if (next_step_ == 0) {
      const size_t row = size_t{groups_.group[next_.group].x} * args_.features + 2 * next_.pair;
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
  const StagedInputs<steps> inputs_;
  const ExpertGroups& groups_;
  const WorkItems work_;
  const uint32_t chunks_;  // of a routed row
  Item next_{0, 0};        // to load
  uint32_t next_step_ = 0;
  WeightRow gate_, up_;
  ScaledChunk raw_[shared_depth][2];
};

}  // namespace ds4::cuda
