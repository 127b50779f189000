// Gate and up of a mixture of experts for 1..16 tokens, with clamped SwiGLU, in one kernel.
// Layout: expert planes [E * F][d]; slots and mid in experts.hpp. Preconditions: experts.hpp. IQ2_XXS keeps
// its tables (iq2_tables.cuh, 64 KiB) in shared memory, filled once per block, so the grid is as large as the
// device holds and strides over the work. The formats of published files have kernels of their own for one
// token and for several (several_tokens_gate_up.cuh); the others take one token by slot, more by row tile,
// then slot, so that tokens with the same expert find its rows in L2. Bytes: K experts per token once, those
// of several tokens once for two of them; shared expert once (other formats: once for 4 tokens); at Flash
// shapes and one token 26 + 18 MB. FLOPs 2 for a weight. Why: a warp makes a gate row and its up row, so
// SwiGLU needs no second pass. Several tokens: instructions, not bytes, are the limit.
#include <algorithm>

#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/moe/expert_formats.cuh"
#include "backend/cuda/moe/several_tokens_gate_up.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t rows_per_tile = 64;  // 64 gate and up rows of 16 x 6 slots stay far below the size of L2

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

/// An item of the routed experts: for each tile of rows the slots, for each slot the rows of the tile.
struct RoutedItem {
  uint32_t routed, row;
};

__device__ __forceinline__ RoutedItem routed_item(uint32_t item, const Divisor& units) {
  const uint32_t group = item / rows_per_tile, tile = units.quotient(group);
  return {group - tile * units.value, tile * rows_per_tile + item % rows_per_tile};
}

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
    const uint32_t token = k_count.quotient(item.routed);
    float sums[2] = {};
    gate_up_row<type, 1, unroll>(args.gate, args.up, expert * args.features + item.row, args.x, token, 1,
                                 tables, sums);
    results.add(args, __shfl_sync(~0u, sums[0], 0), __shfl_sync(~0u, sums[0], 16), item.routed, token,
                item.row);
  }
  results.store(args);
}

/// One block per processor.
constexpr uint32_t gate_up_threads = 512;

__device__ __forceinline__ WorkItems work_items() {
  return {threadIdx.x / 32 * gridDim.x + blockIdx.x, gridDim.x * (gate_up_threads / 32)};
}

template <int steps>
__global__ void __launch_bounds__(gate_up_threads, 1)
    one_token_gate_up_kernel(const __grid_constant__ ExpertsGateUp args) {
  extern __shared__ uint4 shared[];
  uint8_t* const tables = reinterpret_cast<uint8_t*>(shared);
  OneTokenGateUp<steps> products(args, tables, work_items());
  products.prefetch();
  fill_iq2_pairs(tables);
  __syncthreads();
  wait_for_predecessor();
  start_successor();  // not before: experts_down() relies on the routing being complete when it starts
  products.shared();
  products.routed();
}

template <int steps, int tokens>
__global__ void __launch_bounds__(gate_up_threads, 1)
    several_tokens_gate_up_kernel(const __grid_constant__ ExpertsGateUp args, uint32_t below) {
  extern __shared__ uint4 shared[];
  __shared__ ExpertGroups groups;
  uint8_t* const begin = reinterpret_cast<uint8_t*>(shared);
  const auto before = pairs_at - static_cast<uint32_t>(__cvta_generic_to_shared(begin));
  uint8_t* const tables = begin + before;
  const StagedInputs<steps> inputs{
      begin, below,
      before + static_cast<uint32_t>(iq2_pairs_bytes) - below * StagedInputs<steps>::token_bytes};
  SeveralTokensGateUp<steps, tokens> products(args, inputs, groups, work_items());
  products.prefetch();
  fill_iq2_pairs(tables);
  wait_for_predecessor();
  start_successor();  // not before, as above
  inputs.fill(args.x, args.gate.cols, args.tokens);
  groups.find(args.ids, args.tokens * args.experts_per_token);  // synchronises the block
  products.shared();
  products.routed();
}

template <int tokens, bool common>
__global__ void __launch_bounds__(gate_up_threads, 1)
    gate_up_kernel(const __grid_constant__ ExpertsGateUp args, bool needs_tables) {
  extern __shared__ uint4 shared[];
  uint8_t* const tables = reinterpret_cast<uint8_t*>(shared);
  if (needs_tables) {
    fill_iq2_pairs(tables);
    __syncthreads();
  }
  wait_for_predecessor();
  start_successor();  // not before, as above
  const WorkItems work = work_items();
  if constexpr (common) {
    shared_gate_up<TensorType::q8_0, tokens>(args, tables, work);
    routed_gate_up<TensorType::iq2_xxs, 2>(args, tables, work);
  } else {
    with_type(args.shared_gate.type,
              [&](auto type) { shared_gate_up<decltype(type)::value, tokens>(args, tables, work); });
    with_type(args.gate.type, [&](auto type) {
      constexpr TensorType routed = decltype(type)::value;
      routed_gate_up<routed, chunk_columns(routed) <= 16 ? 4 : 2>(args, tables, work);
    });
  }
}

/// Nothing where the device has too little shared memory for the activations.
template <int steps>
cudaError_t launch_several_tokens(const ExpertsGateUp& args, int device, uint32_t blocks, cudaStream_t stream,
                                  bool& launched) {
  const auto kernel = args.tokens <= 2   ? several_tokens_gate_up_kernel<steps, 2>
                      : args.tokens <= 4 ? several_tokens_gate_up_kernel<steps, 4>
                      : args.tokens <= 8 ? several_tokens_gate_up_kernel<steps, 8>
                                         : several_tokens_gate_up_kernel<steps, 16>;
  using Inputs = StagedInputs<steps>;
  int reserved = 0, most = 0;
  cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  // The window begins with what is reserved and the groups.
  constexpr uint32_t padding = 128;
  const uint32_t begin = static_cast<uint32_t>(reserved) + static_cast<uint32_t>(sizeof(ExpertGroups));
  const uint32_t below = std::min((pairs_at - begin - padding) / Inputs::token_bytes, args.tokens);
  const uint32_t end =
      pairs_at + static_cast<uint32_t>(iq2_pairs_bytes) + (args.tokens - below) * Inputs::token_bytes;
  const auto bytes = static_cast<int>(end - begin);
  if (static_cast<int>(end) > most + reserved) return cudaSuccess;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  launched = true;
  return launch(kernel, blocks, gate_up_threads, static_cast<uint32_t>(bytes), stream, args, below);
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
  constexpr uint32_t warps = gate_up_threads / 32;
  const uint32_t blocks = std::min(static_cast<uint32_t>(processors), (items + warps - 1) / warps);
  const bool common = args.gate.type == TensorType::iq2_xxs && args.shared_gate.type == TensorType::q8_0;
  const uint32_t steps = (cols / chunk_columns(args.gate.type) + 31) / 32;
  if (args.tokens == 1 && common && steps <= 4 && features % 2 == 0) {
    const auto kernel = steps <= 2 ? one_token_gate_up_kernel<2> : one_token_gate_up_kernel<4>;
    if (const cudaError_t status = allow_tables(kernel, true); status != cudaSuccess) return status;
    return launch(kernel, blocks, gate_up_threads, table_bytes(true), stream, args);
  }
  if (args.tokens > 1 && common && steps <= 4 && features % 2 == 0 &&
      args.tokens * args.experts_per_token <= ExpertGroups::max_slots) {
    bool launched = false;
    const cudaError_t status = steps <= 2 ? launch_several_tokens<2>(args, device, blocks, stream, launched)
                                          : launch_several_tokens<4>(args, device, blocks, stream, launched);
    if (launched || status != cudaSuccess) return status;
  }
  const auto kernel = args.tokens == 1 ? gate_up_kernel<1, false>
                      : common         ? gate_up_kernel<4, true>
                                       : gate_up_kernel<4, false>;
  if (const cudaError_t status = allow_tables(kernel, tables); status != cudaSuccess) return status;
  return launch(kernel, blocks, gate_up_threads, table_bytes(tables), stream, args, tables);
}

}  // namespace ds4::cuda
