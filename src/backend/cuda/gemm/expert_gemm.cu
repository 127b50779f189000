// Mixture of experts for up to 256 tokens on tensor cores: gate and up with clamped SwiGLU, down for every
// slot, and the sum over a token's slots. Layout: expert planes [E * F][d] and [E * d][F]; slots in
// experts.hpp; tiles in expert_scratch.cuh. Preconditions: expert_gemm.hpp. A block makes 128 rows (16 for
// each of its eight warps; in gate-up a gate and an up row each) by the tokens of one tile, rounded up to 8,
// 16 or 32. Bytes: every touched expert once for 32 of its tokens; at Flash shapes and 256 tokens 1.8 GB.
// Bound by decoding: an expert has about six tokens there. Why: warps decode straight into
// tensor-core fragments, and a gate row shares activations with its up row, so SwiGLU needs no second pass.
// Products of slots are summed by a second kernel, in a fixed order.
#include "backend/cuda/gemm/expert_gemm.hpp"
#include "backend/cuda/gemm/expert_scratch.cuh"
#include "backend/cuda/gemm/tile.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t block_warps = 8;
constexpr uint32_t block_threads = block_warps * 32;
constexpr uint32_t block_rows = block_warps * 16;
constexpr uint32_t stage_bytes = 2 * expert_tile_tokens * stage_bytes_per_token;
constexpr float swiglu_limit = 10.0f;

__device__ __forceinline__ float swiglu(float gate, float up, float weight) {
  const float g = fminf(gate, swiglu_limit);
  const float u = fminf(fmaxf(up, -swiglu_limit), swiglu_limit);
  const float silu = __fdiv_rn(g, __fadd_rn(1.0f, expf(-g)));
  return __fmul_rn(__fmul_rn(silu, u), weight);
}

/// The tile of a block: blockIdx.y counts the tiles of the shared expert, then those of the routed ones.
struct BlockTile {
  bool is_shared;
  ExpertTile tile;  // of the shared expert: first is a token
};
__device__ __forceinline__ BlockTile block_tile(const ExpertScratch& scratch, uint32_t tokens) {
  const uint32_t shared_tiles = (tokens + expert_tile_tokens - 1) / expert_tile_tokens;
  if (blockIdx.y < shared_tiles) {
    const uint32_t first = blockIdx.y * expert_tile_tokens;
    return {true, {0, first, min(tokens - first, expert_tile_tokens)}};
  }
  const uint32_t index = blockIdx.y - shared_tiles;
  if (index >= *scratch.tile_count) return {false, {0, 0, 0}};
  return {false, scratch.tiles[index]};
}

/// Slot of token `t` of the tile, the last one again beyond its end.
__device__ __forceinline__ uint32_t slot_of(const BlockTile& block, const ExpertScratch& scratch,
                                            uint32_t k_count, uint32_t t) {
  const uint32_t at = block.tile.first + min(t, block.tile.count - 1);
  return block.is_shared ? at * (k_count + 1) + k_count : scratch.slots[at];
}

/// Multiplies with the smallest tile that holds `count` tokens, then calls store(m-th sums, token, row) once
/// for every token and row of the tile.
template <TensorType type, int matrices, int n_tiles, class Store>
__device__ __forceinline__ void run_tile(const LaneRows (&rows)[matrices], const TileInputs& in,
                                         const Store& store) {
  float sums[matrices][n_tiles][4] = {};
  multiply<type, block_threads>(rows, in, sums);
  const uint32_t g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float values[matrices];
#pragma unroll
      for (int m = 0; m < matrices; ++m) values[m] = sums[m][n][i];
      store(values, n * 8 + 2 * c + i % 2, threadIdx.x / 32 * 16 + g + i / 2 * 8);
    }
  }
}

template <TensorType type, int matrices, class Store>
__device__ __forceinline__ void run_tiles(const LaneRows (&rows)[matrices], const TileInputs& in,
                                          uint32_t count, const Store& store) {
  if constexpr (is_plain(type)) {
    run_tile<type, matrices, 4>(rows, in, store);
  } else {
    if (count <= 8) return run_tile<type, matrices, 1>(rows, in, store);
    if (count <= 16) return run_tile<type, matrices, 2>(rows, in, store);
    run_tile<type, matrices, 4>(rows, in, store);
  }
}

__global__ void __launch_bounds__(block_threads, 2)
    gate_up_kernel(const __grid_constant__ ExpertsGateUp args, const ExpertScratch scratch) {
  extern __shared__ uint4 shared[];
  __shared__ uint32_t token_rows[expert_tile_tokens], slots[expert_tile_tokens];
  __shared__ float weights[expert_tile_tokens];
  const BlockTile block = block_tile(scratch, args.tokens);
  if (block.tile.count == 0) return;
  uint8_t* const stages = reinterpret_cast<uint8_t*>(shared);
  uint8_t* const tables = stages + stage_bytes;
  const uint32_t k_count = args.experts_per_token;
  if (threadIdx.x < expert_tile_tokens) {
    const uint32_t slot = slot_of(block, scratch, k_count, threadIdx.x), token = slot / (k_count + 1);
    slots[threadIdx.x] = slot;
    token_rows[threadIdx.x] = token;
    weights[threadIdx.x] = block.is_shared ? 1.0f : args.weights[token * k_count + slot % (k_count + 1)];
  }
  const DeviceMatrix& gate = block.is_shared ? args.shared_gate : args.gate;
  const DeviceMatrix& up = block.is_shared ? args.shared_up : args.up;
  if (gate.type == TensorType::iq2_xxs) fill_iq2_tables(tables);
  __syncthreads();
  const TileInputs in = {args.x, 0, gate.cols, token_rows, stages, tables};
  const uint32_t tile_row = blockIdx.x * block_rows, features = args.features;
  const size_t first = size_t{block.tile.expert} * features, end = first + features;
  for_type(gate.type, [&](auto type) {
    const size_t row = first + tile_row + threadIdx.x / 32 * 16;
    const LaneRows rows[2] = {lane_rows<decltype(type)::value>(gate, row, end),
                              lane_rows<decltype(type)::value>(up, row, end)};
    run_tiles<decltype(type)::value>(
        rows, in, block.tile.count, [&](const float(&values)[2], uint32_t token, uint32_t row_in_block) {
          const uint32_t feature = tile_row + row_in_block;
          if (token >= block.tile.count || feature >= features) return;
          args.mid[size_t{slots[token]} * features + feature] = swiglu(values[0], values[1], weights[token]);
        });
  });
}

__global__ void __launch_bounds__(block_threads, 2)
    down_kernel(const __grid_constant__ ExpertsDown args, const ExpertScratch scratch, float* products) {
  extern __shared__ uint4 shared[];
  __shared__ uint32_t slots[expert_tile_tokens];
  const BlockTile block = block_tile(scratch, args.tokens);
  if (block.tile.count == 0) return;
  uint8_t* const stages = reinterpret_cast<uint8_t*>(shared);
  uint8_t* const tables = stages + stage_bytes;
  if (threadIdx.x < expert_tile_tokens) {
    slots[threadIdx.x] = slot_of(block, scratch, args.experts_per_token, threadIdx.x);
  }
  const DeviceMatrix& down = block.is_shared ? args.shared_down : args.down;
  if (down.type == TensorType::iq2_xxs) fill_iq2_tables(tables);
  __syncthreads();
  const TileInputs in = {args.mid, 0, down.cols, slots, stages, tables};
  const uint32_t tile_row = blockIdx.x * block_rows, outputs = args.outputs;
  const size_t first = size_t{block.tile.expert} * outputs, end = first + outputs;
  for_type(down.type, [&](auto type) {
    const LaneRows rows[1] = {
        lane_rows<decltype(type)::value>(down, first + tile_row + threadIdx.x / 32 * 16, end)};
    run_tiles<decltype(type)::value>(rows, in, block.tile.count,
                                     [&](const float(&values)[1], uint32_t token, uint32_t row_in_block) {
                                       const uint32_t output = tile_row + row_in_block;
                                       if (token >= block.tile.count || output >= outputs) return;
                                       products[size_t{slots[token]} * outputs + output] = values[0];
                                     });
  });
}

/// Four outputs of a token per thread.
__global__ void sum_kernel(const float* products, float* out, uint32_t out_stride, uint32_t slots,
                           uint32_t outputs) {
  const uint32_t column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (column >= outputs) return;
  const float* const first = products + size_t{blockIdx.y} * slots * outputs + column;
  float4 sum = *reinterpret_cast<const float4*>(first);
#pragma unroll 4
  for (uint32_t k = 1; k < slots; ++k) {
    const float4 v = *reinterpret_cast<const float4*>(first + size_t{k} * outputs);
    sum.x = __fadd_rn(sum.x, v.x);
    sum.y = __fadd_rn(sum.y, v.y);
    sum.z = __fadd_rn(sum.z, v.z);
    sum.w = __fadd_rn(sum.w, v.w);
  }
  float* const to = out + size_t{blockIdx.y} * out_stride + column;
  to[0] = sum.x;
  to[1] = sum.y;
  to[2] = sum.z;
  to[3] = sum.w;
}

bool fits(const DeviceMatrix& m, size_t rows, uint32_t cols, uint32_t stride) {
  const uint32_t chunk = chunk_columns(m.type);
  if (chunk == 0 || m.cols != cols || cols == 0 || cols > stride || stride % 32 != 0 || m.rows != rows) {
    return false;
  }
  return cols % (chunk == 64 || m.type == TensorType::q4_k ? 256 : 32) == 0;
}

bool agree(const ExpertGroups& groups, uint32_t tokens, uint32_t experts_per_token, const int32_t* ids) {
  return groups.tokens == tokens && groups.experts_per_token == experts_per_token && groups.ids == ids &&
         tokens >= 1 && tokens <= max_gemm_tokens && groups.scratch != nullptr;
}

dim3 grid_of(const ExpertGroups& groups, uint32_t rows) {
  const uint32_t shared_tiles = (groups.tokens + expert_tile_tokens - 1) / expert_tile_tokens;
  const size_t tiles = max_expert_tiles(groups.tokens, groups.experts_per_token, groups.experts);
  return dim3((rows + block_rows - 1) / block_rows, shared_tiles + static_cast<uint32_t>(tiles));
}

uint32_t shared_bytes(TensorType a, TensorType b) {
  const bool tables = a == TensorType::iq2_xxs || b == TensorType::iq2_xxs;
  return stage_bytes + (tables ? static_cast<uint32_t>(iq2_tables_bytes) : 0);
}

}  // namespace

cudaError_t expert_gemm_gate_up(const ExpertsGateUp& args, const ExpertGroups& groups, cudaStream_t stream) {
  const uint32_t cols = args.gate.cols, stride = args.x.stride;
  const size_t rows = size_t{groups.experts} * args.features;
  if (args.features == 0 || !agree(groups, args.tokens, args.experts_per_token, args.ids) ||
      args.gate.type != args.up.type || args.shared_gate.type != args.shared_up.type ||
      !fits(args.gate, rows, cols, stride) || !fits(args.up, rows, cols, stride) ||
      !fits(args.shared_gate, args.features, cols, stride) ||
      !fits(args.shared_up, args.features, cols, stride)) {
    return cudaErrorInvalidValue;
  }
  const uint32_t bytes = shared_bytes(args.gate.type, args.shared_gate.type);
  const cudaError_t status = cudaFuncSetAttribute(gate_up_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  gate_up_kernel<<<grid_of(groups, args.features), block_threads, bytes, stream>>>(args,
                                                                                   expert_scratch(groups));
  return cudaPeekAtLastError();
}

size_t expert_products_bytes(uint32_t tokens, uint32_t experts_per_token, uint32_t outputs) {
  return size_t{tokens} * (experts_per_token + 1) * outputs * sizeof(float);
}

cudaError_t expert_gemm_down(const ExpertsDown& args, const ExpertGroups& groups, float* products,
                             cudaStream_t stream) {
  const uint32_t cols = args.down.cols, stride = args.mid.stride;
  if (args.outputs == 0 || args.outputs % 4 != 0 || products == nullptr ||
      !agree(groups, args.tokens, args.experts_per_token, args.ids) ||
      !fits(args.down, size_t{groups.experts} * args.outputs, cols, stride) ||
      !fits(args.shared_down, args.outputs, cols, stride)) {
    return cudaErrorInvalidValue;
  }
  const uint32_t bytes = shared_bytes(args.down.type, args.shared_down.type);
  cudaError_t status =
      cudaFuncSetAttribute(down_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  down_kernel<<<grid_of(groups, args.outputs), block_threads, bytes, stream>>>(args, expert_scratch(groups),
                                                                               products);
  status = cudaPeekAtLastError();
  if (status != cudaSuccess) return status;
  constexpr uint32_t threads = 128;
  sum_kernel<<<dim3((args.outputs / 4 + threads - 1) / threads, args.tokens), threads, 0, stream>>>(
      products, args.out, args.out_stride, args.experts_per_token + 1, args.outputs);
  return cudaPeekAtLastError();
}

}  // namespace ds4::cuda
