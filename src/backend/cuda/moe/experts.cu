// Mixture of experts for 1..16 tokens: gate and up with clamped SwiGLU in one kernel, down with the sum over
// experts. Layout: expert planes [E * F][d] and [E * d][F]; slots and mid in experts.hpp. Preconditions:
// experts.hpp. IQ2_XXS keeps its tables (iq2_tables.cuh, 64 KiB) in shared memory, filled once per block, so
// the gate-up grid is as large as the device holds and strides over the work, sorted by row tile, then slot,
// so that tokens with the same expert find its rows in L2. Bytes: K experts per token once, shared expert
// once for 4 tokens; at Flash shapes and one token 26 + 18 MB (gate, up) and 17 + 9 MB (down). FLOPs 2 for a
// weight. Why: a warp makes a gate row and its up row, so SwiGLU needs no second pass; in down it makes two
// rows, which share the activations and keep six expert rows in flight.
#include <type_traits>

#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/gemv/row_dot.cuh"
#include "backend/cuda/hc/finish_mix.cuh"
#include "backend/cuda/moe/experts.hpp"

namespace ds4::cuda {
namespace {

constexpr uint32_t gate_up_threads = 512;  // one block per processor
constexpr uint32_t down_warps = 4;
constexpr int down_rows = 2;            // of a warp: they share the activations
constexpr uint32_t rows_per_tile = 64;  // 64 gate and up rows of 16 x 6 slots stay far below the size of L2
constexpr float swiglu_limit = 10.0f;

bool is_256_block_type(TensorType type) {
  return type == TensorType::iq2_xxs || type == TensorType::q2_k || type == TensorType::q4_k;
}

__device__ __forceinline__ float swiglu(float gate, float up, float weight) {
  const float g = fminf(gate, swiglu_limit);
  const float u = fminf(fmaxf(up, -swiglu_limit), swiglu_limit);
  const float silu = __fdiv_rn(g, __fadd_rn(1.0f, expf(-g)));
  return __fmul_rn(__fmul_rn(silu, u), weight);
}

/// One gate row and one up row for `tokens` tokens from `first_token`.
template <TensorType type, int tokens, int unroll>
__device__ __forceinline__ void gate_up_row(const DeviceMatrix& gate, const DeviceMatrix& up,
                                            size_t matrix_row, const DeviceActivations& x,
                                            uint32_t first_token, uint32_t count, const uint8_t* tables,
                                            float (&sums)[2 * tokens]) {
  const WeightRow rows[2] = {weight_row<type>(gate, matrix_row), weight_row<type>(up, matrix_row)};
  accumulate_rows<type, 2, tokens, unroll>(rows, input_row(x, first_token, 0), x.stride, count - 1, 0,
                                           gate.cols / chunk_columns(type), tables, sums);
  reduce_warp(sums);
}

/// A warp's items are first, first + stride, ...
struct WorkItems {
  uint32_t first, stride;
};

/// Items of the shared expert: features x groups of `tokens` tokens.
template <TensorType type, int tokens>
__device__ __forceinline__ void shared_gate_up(const ExpertsGateUp& args, const uint8_t* tables,
                                               const WorkItems& work) {
  const uint32_t groups = (args.tokens + tokens - 1) / tokens, end = args.features * groups;
#pragma unroll 1
  for (uint32_t item = work.first; item < end; item += work.stride) {
    const uint32_t row = item / groups, first = item % groups * tokens;
    const uint32_t count = min(static_cast<uint32_t>(tokens), args.tokens - first);
    float sums[2 * tokens] = {};
    constexpr int unroll = tokens > 1 ? 1 : chunk_columns(type) <= 16 ? 4 : 2;
    gate_up_row<type, tokens, unroll>(args.shared_gate, args.shared_up, row, args.x, first, count, tables,
                                      sums);
    const float up = __shfl_xor_sync(~0u, sums[0], 16);  // lanes 0..15 hold gate sums, 16..31 up sums
    const uint32_t lane = threadIdx.x % 32, token = lane / (16 / tokens);
    if (lane < 16 && lane % (16 / tokens) == 0 && token < count) {
      const size_t slot = size_t{first + token + 1} * (args.experts_per_token + 1) - 1;
      args.mid[slot * args.features + row] = swiglu(sums[0], up, 1.0f);
    }
  }
}

/// Division by a count up to 512 of numbers below 2^22, by a multiplication.
struct Divisor {
  uint32_t value, reciprocal;
  __device__ explicit Divisor(uint32_t count) : value(count), reciprocal(~0u / count + 1) {}
  __device__ uint32_t quotient(uint32_t n) const { return value == 1 ? n : __umulhi(n, reciprocal); }
};

/// An item of the routed experts: for each tile of rows the slots, for each slot the rows of the tile.
struct RoutedItem {
  uint32_t routed, row;
};

__device__ __forceinline__ RoutedItem routed_item(uint32_t item, const Divisor& units) {
  const uint32_t group = item / rows_per_tile, tile = units.quotient(group);
  return {group - tile * units.value, tile * rows_per_tile + item % rows_per_tile};
}

/// SwiGLU costs as much for one lane as for 32: lane i keeps the sums of the warp's item i until 32 are
/// there.
class RoutedResults {
 public:
  /// The reduced sums of one more item: lanes 0..15 hold the gate's, 16..31 the up row's.
  __device__ __forceinline__ void add(const ExpertsGateUp& args, float sum, const RoutedItem& item,
                                      const Divisor& k_count) {
    const float other = __shfl_xor_sync(~0u, sum, 16);
    const uint32_t lane = threadIdx.x % 32;
    if (lane == count_) {
      gate_ = lane < 16 ? sum : other;
      up_ = lane < 16 ? other : sum;
      item_ = item;
    }
    if (++count_ == 32) store(args, k_count);
  }
  __device__ __forceinline__ void store(const ExpertsGateUp& args, const Divisor& k_count) {
    if (threadIdx.x % 32 < count_) {
      const size_t slot = size_t{item_.routed} + k_count.quotient(item_.routed);
      args.mid[slot * args.features + item_.row] = swiglu(gate_, up_, __ldcg(args.weights + item_.routed));
    }
    count_ = 0;
  }

 private:
  float gate_ = 0.0f, up_ = 0.0f;
  RoutedItem item_{0, 0};
  uint32_t count_ = 0;
};

template <TensorType type, int unroll>
__device__ __forceinline__ void routed_gate_up(const ExpertsGateUp& args, const uint8_t* tables,
                                               const WorkItems& work) {
  const Divisor k_count(args.experts_per_token), units(args.tokens * args.experts_per_token);
  const uint32_t end = (args.features + rows_per_tile - 1) / rows_per_tile * rows_per_tile * units.value;
  RoutedResults results;
#pragma unroll 1
  for (uint32_t at = work.first; at < end; at += work.stride) {
    const RoutedItem item = routed_item(at, units);
    if (item.row >= args.features) continue;
    const size_t expert = static_cast<size_t>(__ldcg(args.ids + item.routed));
    float sums[2] = {};
    gate_up_row<type, 1, unroll>(args.gate, args.up, expert * args.features + item.row, args.x,
                                 k_count.quotient(item.routed), 1, tables, sums);
    results.add(args, sums[0], item, k_count);
  }
  results.store(args, k_count);
}

/// Calls f with the type as a compile-time constant; the branch is the same for the whole grid.
template <class F>
__device__ __forceinline__ void with_type(TensorType type, const F& f) {
  switch (type) {
    case TensorType::iq2_xxs:
      return f(std::integral_constant<TensorType, TensorType::iq2_xxs>{});
    case TensorType::q8_0:
      return f(std::integral_constant<TensorType, TensorType::q8_0>{});
    case TensorType::mxfp4:
      return f(std::integral_constant<TensorType, TensorType::mxfp4>{});
    case TensorType::q4_k:
      return f(std::integral_constant<TensorType, TensorType::q4_k>{});
    case TensorType::q2_k:
      return f(std::integral_constant<TensorType, TensorType::q2_k>{});
    case TensorType::f16:
      return f(std::integral_constant<TensorType, TensorType::f16>{});
    case TensorType::bf16:
      return f(std::integral_constant<TensorType, TensorType::bf16>{});
    default:
      return f(std::integral_constant<TensorType, TensorType::f32>{});
  }
}

/// Rounds of `depth` steps in flight, across items and from the shared expert to the routed ones, for one
/// token, or for the routed items of several. A step is 32 chunks of a gate row and of its up row. Both
/// formats are loaded as 16 bytes and an F16 scale, so that they share the registers.
class CommonGateUp {
 public:
  __device__ __forceinline__ CommonGateUp(const ExpertsGateUp& args, const uint8_t* tables,
                                          const WorkItems& work)
      : args_(args),
        tables_(tables),
        work_(work),
        k_count_(args.experts_per_token),
        units_(args.tokens * args.experts_per_token),
        chunks_(args.gate.cols / Routed::chunk_columns),
        end_((args.features + rows_per_tile - 1) / rows_per_tile * rows_per_tile * units_.value),
        next_(work.first) {}

  /// The first steps of the shared expert, which need no routing.
  __device__ __forceinline__ void prefetch() {
#pragma unroll
    for (int j = 0; j < depth; ++j) load_shared(work_.first, 32u * j, raw_[j]);
  }

  /// One token's shared expert. The routed items follow in the same buffers.
  __device__ __forceinline__ void shared() {
    const uint32_t chunks = args_.shared_gate.cols / Shared::chunk_columns;
    const InputRow x = input_row(args_.x, 0, 0);
#pragma unroll 1
    for (uint32_t row = work_.first; row < args_.features; row += work_.stride) {
      float sums[2] = {};
#pragma unroll 1
      for (uint32_t first = 0; first < chunks; first += 32 * depth) {
        const bool last = first + 32 * depth >= chunks;
#pragma unroll
        for (int j = 0; j < depth; ++j) {
          const uint32_t chunk = first + 32 * j + threadIdx.x % 32;
          if (chunk < chunks) {
            accumulate_step<TensorType::q8_0, 2, 1>(raw_[j], chunk, x, 0, 0, nullptr, sums);
          }
          if (!last) {
            load_shared(row, first + 32 * (depth + j), raw_[j]);
          } else if (row + work_.stride < args_.features) {
            load_shared(row + work_.stride, 32u * j, raw_[j]);
          } else {
            load_routed(raw_[j]);
          }
        }
      }
      reduce_warp(sums);
      const float up = __shfl_xor_sync(~0u, sums[0], 16);
      if (threadIdx.x % 32 == 0) {
        args_.mid[size_t{args_.experts_per_token} * args_.features + row] = swiglu(sums[0], up, 1.0f);
      }
    }
    if (work_.first >= args_.features) start_routed();
  }

  __device__ __forceinline__ void start_routed() {
#pragma unroll
    for (int j = 0; j < depth; ++j) load_routed(raw_[j]);
  }

  __device__ __forceinline__ void routed() {
    RoutedResults results;
    uint32_t at = work_.first, first = 0;
    float sums[2] = {};
    skip(at);
#pragma unroll 1
    while (at < end_) {
#pragma unroll
      for (int j = 0; j < depth; ++j) {
        if (at >= end_) break;
        const uint32_t chunk = first + threadIdx.x % 32;
        const RoutedItem item = routed_item(at, units_);
        if (chunk < chunks_) {
          const InputRow x = input_row(args_.x, k_count_.quotient(item.routed), 0);
          accumulate_step<TensorType::iq2_xxs, 2, 1>(raw_[j], chunk, x, 0, 0, tables_, sums);
        }
        load_routed(raw_[j]);
        first += 32;
        if (first < chunks_) continue;
        reduce_warp(sums);
        results.add(args_, sums[0], item, k_count_);
        sums[0] = sums[1] = 0.0f;
        first = 0;
        at += work_.stride;
        skip(at);
      }
    }
    results.store(args_, k_count_);
  }

 private:
  using Routed = RowFormat<TensorType::iq2_xxs>;
  using Shared = RowFormat<TensorType::q8_0>;
  static constexpr int depth = 4;

  /// To the next item that is there: the last tile may be larger than what is left of the rows.
  __device__ __forceinline__ void skip(uint32_t& at) const {
    while (at < end_ && routed_item(at, units_).row >= args_.features) at += work_.stride;
  }

  __device__ __forceinline__ void load_shared(uint32_t row, uint32_t first, ScaledChunk (&raw)[2]) const {
    const uint32_t chunk = first + threadIdx.x % 32;
    if (row >= args_.features || chunk >= args_.shared_gate.cols / Shared::chunk_columns) return;
    raw[0] = Shared::load(weight_row<TensorType::q8_0>(args_.shared_gate, row), chunk);
    raw[1] = Shared::load(weight_row<TensorType::q8_0>(args_.shared_up, row), chunk);
  }

  __device__ __forceinline__ void load_routed(ScaledChunk (&raw)[2]) {
    if (next_first_ == 0) {
      skip(next_);
      if (next_ >= end_) return;
      const RoutedItem item = routed_item(next_, units_);
      const size_t row = static_cast<size_t>(__ldcg(args_.ids + item.routed)) * args_.features + item.row;
      gate_ = weight_row<TensorType::iq2_xxs>(args_.gate, row);
      up_ = weight_row<TensorType::iq2_xxs>(args_.up, row);
    }
    const uint32_t chunk = next_first_ + threadIdx.x % 32;
    if (chunk < chunks_) {
      raw[0] = Routed::load(gate_, chunk);
      raw[1] = Routed::load(up_, chunk);
    }
    next_first_ += 32;
    if (next_first_ < chunks_) return;
    next_first_ = 0;
    next_ += work_.stride;
  }

  const ExpertsGateUp& args_;
  const uint8_t* tables_;
  const WorkItems work_;
  const Divisor k_count_, units_;
  const uint32_t chunks_, end_;
  uint32_t next_, next_first_ = 0;  // the step to load
  WeightRow gate_, up_;
  ScaledChunk raw_[depth][2];
};

template <int tokens, bool common>
__global__ void __launch_bounds__(gate_up_threads, 1)
    gate_up_kernel(const __grid_constant__ ExpertsGateUp args, bool needs_tables) {
  extern __shared__ uint4 shared[];
  uint8_t* const tables = reinterpret_cast<uint8_t*>(shared);
  const uint32_t warp = threadIdx.x / 32;
  const WorkItems work{warp * gridDim.x + blockIdx.x, gridDim.x * (gate_up_threads / 32)};
  if constexpr (common) {
    CommonGateUp products(args, tables, work);
    if (tokens == 1) products.prefetch();
    fill_iq2_pairs(tables);
    __syncthreads();
    wait_for_predecessor();
    start_successor();  // not before: experts_down() relies on the routing being complete when it starts
    if constexpr (tokens == 1) {
      products.shared();
    } else {
      shared_gate_up<TensorType::q8_0, tokens>(args, tables, work);
      products.start_routed();
    }
    products.routed();
  } else {
    if (needs_tables) {
      fill_iq2_pairs(tables);
      __syncthreads();
    }
    wait_for_predecessor();
    start_successor();
    with_type(args.shared_gate.type,
              [&](auto type) { shared_gate_up<decltype(type)::value, tokens>(args, tables, work); });
    with_type(args.gate.type, [&](auto type) {
      constexpr TensorType routed = decltype(type)::value;
      routed_gate_up<routed, chunk_columns(routed) <= 16 ? 4 : 2>(args, tables, work);
    });
  }
}

/// What a warp reads of the routed experts to make `rows` output rows of one token: steps of 32 chunks,
/// expert after expert.
template <TensorType type, int rows>
class RoutedDown {
 public:
  __device__ __forceinline__ RoutedDown(const ExpertsDown& args, uint32_t token, uint32_t row)
      : args_(args), token_(token), row_(row), steps_((args.down.cols / Format::chunk_columns + 31) / 32) {
    const uint32_t lane = threadIdx.x % 32;
    id_of_lane_ =
        lane < args.experts_per_token ? __ldcg(args.ids + size_t{token} * args.experts_per_token + lane) : 0;
  }
  __device__ __forceinline__ uint32_t total() const { return args_.experts_per_token * steps_; }
  __device__ __forceinline__ void load(uint32_t step, typename RowFormat<type>::Raw (&raw)[rows]) const {
    const uint32_t k = step / steps_, chunk = step % steps_ * 32 + threadIdx.x % 32;
    const size_t expert = static_cast<size_t>(__shfl_sync(~0u, id_of_lane_, static_cast<int>(k % 32)));
    if (step >= total() || chunk >= args_.down.cols / Format::chunk_columns) return;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const uint32_t of_expert = min(row_ + r, args_.outputs - 1);
      raw[r] = Format::load(weight_row<type>(args_.down, expert * args_.outputs + of_expert), chunk);
    }
  }
  __device__ __forceinline__ void add(uint32_t step, const typename RowFormat<type>::Raw (&raw)[rows],
                                      const uint8_t* tables, float (&sums)[rows]) const {
    const uint32_t k = step / steps_, chunk = step % steps_ * 32 + threadIdx.x % 32;
    if (step >= total() || chunk >= args_.down.cols / Format::chunk_columns) return;
    const InputRow x = input_row(args_.mid, size_t{token_} * (args_.experts_per_token + 1) + k, 0);
    accumulate_step<type, rows, 1>(raw, chunk, x, 0, 0, tables, sums);
  }

 private:
  using Format = RowFormat<type>;
  const ExpertsDown& args_;
  const uint32_t token_, row_, steps_;
  int id_of_lane_;
};

/// sums[i] += the products of output row row + i of one token's experts, in their order.
template <TensorType type, int rows>
__device__ __forceinline__ void add_experts(const ExpertsDown& args, uint32_t token, uint32_t row,
                                            const uint8_t* tables, float (&sums)[rows]) {
  constexpr int depth = 3;
  const RoutedDown<type, rows> routed(args, token, row);
  typename RowFormat<type>::Raw raw[depth][rows];
#pragma unroll
  for (int j = 0; j < depth; ++j) routed.load(j, raw[j]);
#pragma unroll 1
  for (uint32_t first = 0; first < routed.total(); first += depth) {
#pragma unroll
    for (int j = 0; j < depth; ++j) {
      routed.add(first + j, raw[j], tables, sums);
      routed.load(first + depth + j, raw[j]);
    }
  }
}

template <TensorType type, int rows, int tokens>
__device__ __forceinline__ void add_shared(const ExpertsDown& args, uint32_t first_token, uint32_t count,
                                           uint32_t row, const uint8_t* tables,
                                           float (&sums)[rows * tokens]) {
  WeightRow w[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) w[r] = weight_row<type>(args.shared_down, min(row + r, args.outputs - 1));
  const uint32_t slots = args.experts_per_token + 1;
  const InputRow x = input_row(args.mid, size_t{first_token} * slots + slots - 1, 0);
  constexpr int unroll = chunk_columns(type) == 64 ? 1 : 4;
  accumulate_rows<type, rows, tokens, unroll>(w, x, args.mid.stride * slots, count - 1, 0,
                                              args.shared_down.cols / chunk_columns(type), tables, sums);
}

/// Output rows row, row + 1 of one token, routed Q2_K and shared Q8_0: all weights of the shared expert and
/// half of the routed ones are asked for before the activations are there. The kernel two places before this
/// one, which read the routing, had waited for it, and the one between starts this one only when all of that
/// one's blocks have: the routing is complete.
__device__ __forceinline__ void common_down(const ExpertsDown& args, uint32_t row, float (&sums)[down_rows]) {
  constexpr TensorType shared_type = TensorType::q8_0, routed_type = TensorType::q2_k;
  constexpr int shared_depth = 4, routed_depth = 3;
  const RoutedDown<routed_type, down_rows> routed(args, 0, row);
  const uint32_t tile = row / down_rows, chunks = args.shared_down.cols / chunk_columns(shared_type);
  WeightStream<shared_type, down_rows> shared(args.shared_down, tile, args.outputs, 0, chunks);
  ScaledChunk raw[shared_depth][down_rows];
  RowFormat<routed_type>::Raw routed_raw[routed_depth][down_rows];
#pragma unroll
  for (int j = 0; j < shared_depth; ++j) shared.load(raw[j]);
#pragma unroll
  for (int j = 0; j < routed_depth; ++j) routed.load(j, routed_raw[j]);
  wait_for_predecessor();
  float of_routed[down_rows] = {};
#pragma unroll 1
  for (uint32_t first = 0; first < routed.total(); first += routed_depth) {
#pragma unroll
    for (int j = 0; j < routed_depth; ++j) {
      routed.add(first + j, routed_raw[j], nullptr, of_routed);
      routed.load(first + routed_depth + j, routed_raw[j]);
    }
  }
  const InputRow x = input_row(args.mid, args.experts_per_token, 0);
#pragma unroll 1
  for (uint32_t first = 0; first < chunks; first += 32 * shared_depth) {
#pragma unroll
    for (int j = 0; j < shared_depth; ++j) {
      const uint32_t chunk = first + 32 * j + threadIdx.x % 32;
      if (chunk < chunks) accumulate_step<shared_type, down_rows, 1>(raw[j], chunk, x, 0, 0, nullptr, sums);
      shared.load(raw[j]);
    }
  }
#pragma unroll
  for (int r = 0; r < down_rows; ++r) sums[r] = __fadd_rn(of_routed[r], sums[r]);
}

/// A warp makes two output rows for a group of `tokens` tokens. In each lane: the experts ascending, then the
/// shared one. The first block of a group finishes the mixing of
/// the sublayer's streams.
template <int tokens, bool common>
__global__ void __launch_bounds__(down_warps * 32, 4)
    down_kernel(const __grid_constant__ ExpertsDown args, bool needs_tables) {
  start_successor();
  if (blockIdx.x == 0 && args.mix.slices > 0) {  // the slowest block begins first
    __shared__ float parts[down_warps][32];
    wait_for_predecessor();
    for (uint32_t t = blockIdx.y * tokens; t < min(args.tokens, (blockIdx.y + 1) * tokens); ++t) {
      finish_mix(args.mix, static_cast<int>(t), parts);
      __syncthreads();
    }
    return;
  }
  const uint32_t block = blockIdx.x - (args.mix.slices > 0 ? 1 : 0);
  const uint32_t row = (block * down_warps + threadIdx.x / 32) * down_rows;
  const uint32_t first = blockIdx.y * tokens, count = min(static_cast<uint32_t>(tokens), args.tokens - first);
  float sums[down_rows * tokens] = {};
  if constexpr (common) {
    static_assert(tokens == 1);
    if (row >= args.outputs) return wait_for_predecessor();
    common_down(args, row, sums);
  } else {
    extern __shared__ uint4 shared[];
    uint8_t* const tables = reinterpret_cast<uint8_t*>(shared);
    if (needs_tables) {
      fill_iq2_pairs(tables);
      __syncthreads();
    }
    wait_for_predecessor();
    if (row >= args.outputs) return;
    with_type(args.shared_down.type, [&](auto type) {
      add_shared<decltype(type)::value, down_rows, tokens>(args, first, count, row, tables, sums);
    });
    with_type(args.down.type, [&](auto type) {
#pragma unroll 1
      for (uint32_t t = 0; t < count; ++t) {
        float routed[down_rows] = {};
        add_experts<decltype(type)::value, down_rows>(args, first + t, row, tables, routed);
#pragma unroll
        for (int i = 0; i < down_rows * tokens; ++i) {
          if (i % tokens == static_cast<int>(t)) sums[i] = __fadd_rn(routed[i / tokens], sums[i]);
        }
      }
    });
  }
  reduce_warp(sums);
  for_each_reduced(sums, [&](uint32_t index, float value) {
    const uint32_t token = index % tokens, of_warp = index / tokens;
    if (token < count && row + of_warp < args.outputs) {
      args.out[size_t{first + token} * args.out_stride + row + of_warp] = value;
    }
  });
}

bool fits(const DeviceMatrix& m, size_t rows, uint32_t cols, uint32_t stride, bool multiple) {
  if (chunk_columns(m.type) == 0 || m.cols != cols || cols > stride || stride % 32 != 0) return false;
  if (multiple ? m.rows % rows != 0 : m.rows != rows) return false;
  return is_256_block_type(m.type) ? cols % 256 == 0 && stride % 128 == 0 : cols % 32 == 0;
}

bool counts_fit(uint32_t tokens, uint32_t experts_per_token) {
  return tokens >= 1 && tokens <= max_rows && experts_per_token >= 1 && experts_per_token <= 32;
}

uint32_t table_bytes(bool needs_tables) {
  return needs_tables ? static_cast<uint32_t>(iq2_pairs_bytes) : 0;
}

/// More shared memory than the 48 KiB that need no asking.
template <class Kernel>
cudaError_t allow_tables(Kernel* kernel, bool needs_tables) {
  if (!needs_tables) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(iq2_pairs_bytes));
}

}  // namespace

cudaError_t experts_gate_up(const ExpertsGateUp& args, cudaStream_t stream) {
  const uint32_t cols = args.gate.cols, features = args.features;
  if (features == 0 || !counts_fit(args.tokens, args.experts_per_token) || args.gate.type != args.up.type ||
      args.shared_gate.type != args.shared_up.type || args.gate.rows != args.up.rows ||
      !fits(args.gate, features, cols, args.x.stride, true) ||
      !fits(args.up, features, cols, args.x.stride, true) ||
      !fits(args.shared_gate, features, cols, args.x.stride, false) ||
      !fits(args.shared_up, features, cols, args.x.stride, false)) {
    return cudaErrorInvalidValue;
  }
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const bool tables = args.gate.type == TensorType::iq2_xxs || args.shared_gate.type == TensorType::iq2_xxs;
  const uint32_t groups = args.tokens == 1 ? 1 : (args.tokens + 3) / 4;
  const uint32_t tiles = (features + rows_per_tile - 1) / rows_per_tile;
  const uint32_t items = groups * features + tiles * rows_per_tile * args.tokens * args.experts_per_token;
  const uint32_t resident = static_cast<uint32_t>(processors);
  const bool common = args.gate.type == TensorType::iq2_xxs && args.shared_gate.type == TensorType::q8_0;
  constexpr uint32_t warps = gate_up_threads / 32;
  const uint32_t wanted = (items + warps - 1) / warps;
  const uint32_t blocks = wanted < resident ? wanted : resident;
  const auto kernel = args.tokens == 1 ? (common ? gate_up_kernel<1, true> : gate_up_kernel<1, false>)
                                       : (common ? gate_up_kernel<4, true> : gate_up_kernel<4, false>);
  if (const cudaError_t status = allow_tables(kernel, tables); status != cudaSuccess) return status;
  return launch(kernel, blocks, gate_up_threads, table_bytes(tables), stream, args, tables);
}

cudaError_t experts_down(const ExpertsDown& args, cudaStream_t stream) {
  const uint32_t cols = args.down.cols;
  if (args.outputs == 0 || !counts_fit(args.tokens, args.experts_per_token) ||
      !fits(args.down, args.outputs, cols, args.mid.stride, true) ||
      !fits(args.shared_down, args.outputs, cols, args.mid.stride, false)) {
    return cudaErrorInvalidValue;
  }
  const bool tables = args.down.type == TensorType::iq2_xxs || args.shared_down.type == TensorType::iq2_xxs;
  constexpr uint32_t rows_per_block = down_warps * down_rows;
  const uint32_t blocks =
      (args.outputs + rows_per_block - 1) / rows_per_block + (args.mix.slices > 0 ? 1 : 0);
  const uint32_t groups = args.tokens == 1 ? 1 : (args.tokens + 3) / 4;
  const bool common = args.down.type == TensorType::q2_k && args.shared_down.type == TensorType::q8_0;
  const auto kernel = args.tokens > 1 ? down_kernel<4, false>
                      : common        ? down_kernel<1, true>
                                      : down_kernel<1, false>;
  if (const cudaError_t status = allow_tables(kernel, tables); status != cudaSuccess) return status;
  return launch(kernel, dim3(blocks, groups), down_warps * 32, table_bytes(tables), stream, args, tables);
}

}  // namespace ds4::cuda
