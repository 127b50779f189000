// Mixture of experts for 1..16 tokens: gate and up with clamped SwiGLU in one kernel, down with the sum over
// experts. Layout: expert planes [E * F][d] and [E * d][F]; slots and mid in experts.hpp. Preconditions:
// experts.hpp. IQ2_XXS keeps its tables (iq2_tables.cuh, 64 KiB) in shared memory, filled once per block, so
// the gate-up grid is as large as the device holds and strides over the work, sorted by row tile, then slot,
// so that tokens with the same expert find its rows in L2. Bytes: K experts per token once, shared expert
// once for 4 tokens; at Flash shapes and one token 26 + 18 MB (gate, up) and 17 + 9 MB (down). FLOPs 2 for a
// weight. Why: a warp makes a gate row and its up row, so SwiGLU needs no second pass; in down it makes two
// rows, which share the activations and keep six expert rows in flight.
#include <type_traits>

#include "backend/cuda/gemv/row_dot.cuh"
#include "backend/cuda/moe/experts.hpp"

namespace ds4::cuda {
namespace {

/// One block per processor. `common` is a kernel of its own for routed IQ2_XXS with shared Q8_0; the one for
/// all other formats needs more registers.
__host__ __device__ constexpr uint32_t gate_up_threads(bool common) {
  return common ? 768 : 512;
}
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
  __device__ RoutedItem(uint32_t item, const Divisor& units) {
    const uint32_t group = item / rows_per_tile, tile = units.quotient(group);
    routed = group - tile * units.value;
    row = tile * rows_per_tile + item % rows_per_tile;
  }
};

/// SwiGLU costs as much for one lane as for 32: lane i keeps the sums of the warp's item i until 32 are
/// there.
template <TensorType type, int unroll>
__device__ __forceinline__ void routed_gate_up(const ExpertsGateUp& args, const uint8_t* tables,
                                               const WorkItems& work) {
  const Divisor k_count(args.experts_per_token), units(args.tokens * args.experts_per_token);
  const uint32_t end = (args.features + rows_per_tile - 1) / rows_per_tile * rows_per_tile * units.value;
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
  for (uint32_t first = work.first; first < end; first += 32 * work.stride) {
    float gate = 0.0f, up = 0.0f;
#pragma unroll 1
    for (uint32_t i = 0, at = first; i < 32 && at < end; ++i, at += work.stride) {
      const RoutedItem item(at, units);
      if (item.row >= args.features) continue;
      const size_t expert = static_cast<size_t>(__ldg(args.ids + item.routed));
      float sums[2] = {};
      gate_up_row<type, 1, unroll>(args.gate, args.up, expert * args.features + item.row, args.x,
                                   k_count.quotient(item.routed), 1, tables, sums);
      const float other = __shfl_xor_sync(~0u, sums[0], 16);
      if (lane == i) {
        gate = lane < 16 ? sums[0] : other;
        up = lane < 16 ? other : sums[0];
      }
    }
    const uint32_t at = first + lane * work.stride;
    if (at >= end) continue;
    const RoutedItem item(at, units);
    if (item.row >= args.features) continue;
    const size_t slot = size_t{item.routed} + k_count.quotient(item.routed);
    args.mid[slot * args.features + item.row] = swiglu(gate, up, __ldg(args.weights + item.routed));
  }
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

template <int tokens, bool common>
__global__ void __launch_bounds__(gate_up_threads(common), 1)
    gate_up_kernel(const __grid_constant__ ExpertsGateUp args, bool needs_tables) {
  extern __shared__ uint4 shared[];
  uint8_t* const tables = reinterpret_cast<uint8_t*>(shared);
  if (needs_tables) {
    fill_iq2_pairs(tables);
    __syncthreads();
  }
  const uint32_t warp = threadIdx.x / 32;
  const WorkItems work{warp * gridDim.x + blockIdx.x, gridDim.x * (gate_up_threads(common) / 32)};
  if constexpr (common) {
    constexpr int unroll = tokens == 1 ? 1 : 2;
    // One token: every second group of warps begins with the routed experts, which integer instructions
    // limit, while the others read the shared one, which memory limits.
    if (tokens > 1 || warp / 4 % 2 == 0) {
      shared_gate_up<TensorType::q8_0, tokens>(args, tables, work);
      routed_gate_up<TensorType::iq2_xxs, unroll>(args, tables, work);
    } else {
      routed_gate_up<TensorType::iq2_xxs, unroll>(args, tables, work);
      shared_gate_up<TensorType::q8_0, tokens>(args, tables, work);
    }
  } else {
    with_type(args.shared_gate.type,
              [&](auto type) { shared_gate_up<decltype(type)::value, tokens>(args, tables, work); });
    with_type(args.gate.type, [&](auto type) {
      constexpr TensorType routed = decltype(type)::value;
      routed_gate_up<routed, chunk_columns(routed) <= 16 ? 4 : 2>(args, tables, work);
    });
  }
}

/// sums[i] += the products of output row row + i of one token's experts, in their order; `unroll` steps of
/// them in flight. The last row stands in for rows beyond it.
template <TensorType type, int rows>
__device__ __forceinline__ void add_experts(const ExpertsDown& args, uint32_t token, uint32_t row,
                                            const uint8_t* tables, float (&sums)[rows]) {
  using Format = RowFormat<type>;
  constexpr int unroll = 3;
  const uint32_t lane = threadIdx.x % 32, k_count = args.experts_per_token;
  const uint32_t chunks = args.down.cols / Format::chunk_columns, steps = (chunks + 31) / 32;
  const int id_of_lane = lane < k_count ? __ldg(args.ids + size_t{token} * k_count + lane) : 0;
  const uint32_t total = k_count * steps;
#pragma unroll 1
  for (uint32_t first = 0; first < total; first += unroll) {
    typename Format::Raw raw[unroll][rows];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const uint32_t k = (first + u) / steps, chunk = (first + u) % steps * 32 + lane;
      const size_t expert = static_cast<size_t>(__shfl_sync(~0u, id_of_lane, static_cast<int>(k % 32)));
      if (first + u < total && chunk < chunks) {
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const uint32_t of_expert = min(row + r, args.outputs - 1);
          raw[u][r] = Format::load(weight_row<type>(args.down, expert * args.outputs + of_expert), chunk);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const uint32_t k = (first + u) / steps, chunk = (first + u) % steps * 32 + lane;
      if (first + u < total && chunk < chunks) {
        const typename Format::Inputs in =
            Format::inputs(input_row(args.mid, size_t{token} * (k_count + 1) + k, 0), chunk);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          sums[r] = Format::accumulate(Format::decode(raw[u][r], chunk, tables), in, sums[r]);
        }
      }
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

/// A warp makes two output rows for a group of `tokens` tokens. In each lane: the experts ascending, then the
/// shared one.
template <int tokens>
__global__ void __launch_bounds__(down_warps * 32, 4)
    down_kernel(const __grid_constant__ ExpertsDown args, bool needs_tables) {
  extern __shared__ uint4 shared[];
  uint8_t* const tables = reinterpret_cast<uint8_t*>(shared);
  if (needs_tables) {
    fill_iq2_pairs(tables);
    __syncthreads();
  }
  const uint32_t row = (blockIdx.x * down_warps + threadIdx.x / 32) * down_rows;
  if (row >= args.outputs) return;
  const uint32_t first = blockIdx.y * tokens, count = min(static_cast<uint32_t>(tokens), args.tokens - first);
  float sums[down_rows * tokens] = {};
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
  const uint32_t warps = gate_up_threads(common) / 32, wanted = (items + warps - 1) / warps;
  const uint32_t blocks = wanted < resident ? wanted : resident;
  const auto kernel = args.tokens == 1 ? (common ? gate_up_kernel<1, true> : gate_up_kernel<1, false>)
                                       : (common ? gate_up_kernel<4, true> : gate_up_kernel<4, false>);
  if (const cudaError_t status = allow_tables(kernel, tables); status != cudaSuccess) return status;
  kernel<<<blocks, warps * 32, table_bytes(tables), stream>>>(args, tables);
  return cudaPeekAtLastError();
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
  const uint32_t blocks = (args.outputs + rows_per_block - 1) / rows_per_block;
  const uint32_t groups = args.tokens == 1 ? 1 : (args.tokens + 3) / 4;
  const auto kernel = args.tokens == 1 ? down_kernel<1> : down_kernel<4>;
  if (const cudaError_t status = allow_tables(kernel, tables); status != cudaSuccess) return status;
  kernel<<<dim3(blocks, groups), down_warps * 32, table_bytes(tables), stream>>>(args, tables);
  return cudaPeekAtLastError();
}

}  // namespace ds4::cuda
