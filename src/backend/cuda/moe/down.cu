// Down of a mixture of experts for 1..16 tokens, summed over experts.
// Layout: expert planes [E * d][F]; slots and mid in experts.hpp. Preconditions: experts.hpp.
// Bytes: K experts per token once, shared expert once for 4 tokens; at Flash shapes and one token 17 + 9 MB.
// FLOPs 2 for a weight.
// Why: a warp makes two rows, which share the activations and keep six expert rows in flight. The mixing
// weights of the residual streams have time until this sublayer is left: one block finishes them beside the
// products. Several tokens in the formats of published files: several_tokens_down.cuh.
#include <algorithm>

#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/hc/finish_mix.cuh"
#include "backend/cuda/moe/expert_formats.cuh"
#include "backend/cuda/moe/several_tokens_down.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t down_warps = 4;
constexpr int down_rows = 2;  // of a warp: they share the activations

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

/// Adds up the lanes' sums [row][token] of a warp and writes them: rows from `row` on, of `count` tokens from
/// `first` on.
template <int tokens, int size>
__device__ __forceinline__ void store_outputs(const ExpertsDown& args, uint32_t first, uint32_t count,
                                              uint32_t row, float (&sums)[size]) {
  reduce_warp(sums);
  for_each_reduced(sums, [&](uint32_t index, float value) {
    const uint32_t token = index % tokens, of_warp = index / tokens;
    if (token < count && row + of_warp < args.outputs) {
      args.out[size_t{first + token} * args.out_stride + row + of_warp] = value;
    }
  });
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
  store_outputs<tokens>(args, first, count, row, sums);
}

/// As down_kernel, for groups of up to four tokens, with the routed weights in flight across experts and
/// tokens.
template <int rows, int depth, int steps>
__global__ void __launch_bounds__(down_warps * 32, rows > 2 ? 3 : 4)
    several_tokens_down_kernel(const __grid_constant__ ExpertsDown args) {
  using Products = SeveralTokensDown<rows, depth, steps>;
  constexpr uint32_t tokens = Products::group_tokens;
  start_successor();
  const uint32_t first = blockIdx.y * tokens, count = min(tokens, args.tokens - first);
  if (blockIdx.x == 0 && args.mix.slices > 0) {
    __shared__ float parts[down_warps][32];
    wait_for_predecessor();
    for (uint32_t t = first; t < first + count; ++t) {
      finish_mix(args.mix, static_cast<int>(t), parts);
      __syncthreads();
    }
    return;
  }
  const uint32_t block = blockIdx.x - (args.mix.slices > 0 ? 1 : 0);
  const uint32_t row = (block * down_warps + threadIdx.x / 32) * rows;
  if (row >= args.outputs) return wait_for_predecessor();
  Products products(args, first, count, row);
  products.prefetch();
  wait_for_predecessor();
  float sums[rows * tokens] = {};
  products.multiply(sums);
  store_outputs<tokens>(args, first, count, row, sums);
}

template <int rows, int depth, int steps>
cudaError_t launch_several_tokens(const ExpertsDown& args, cudaStream_t stream) {
  constexpr uint32_t rows_per_block = down_warps * rows, tokens = 4;
  const uint32_t blocks =
      (args.outputs + rows_per_block - 1) / rows_per_block + (args.mix.slices > 0 ? 1 : 0);
  return launch(several_tokens_down_kernel<rows, depth, steps>,
                dim3(blocks, (args.tokens + tokens - 1) / tokens), down_warps * 32, 0, stream, args);
}

}  // namespace

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
  if (common && args.tokens > 1 && args.experts_per_token <= 8 && cols <= 4096) {
    if (args.tokens <= 8) {
      return cols <= 2048 ? launch_several_tokens<2, 4, 1>(args, stream)
                          : launch_several_tokens<2, 4, 2>(args, stream);
    }
    return cols <= 2048 ? launch_several_tokens<4, 2, 1>(args, stream)
                        : launch_several_tokens<4, 2, 2>(args, stream);
  }
  const auto kernel = args.tokens > 1 ? down_kernel<4, false>
                      : common        ? down_kernel<1, true>
                                      : down_kernel<1, false>;
  if (const cudaError_t status = allow_tables(kernel, tables); status != cudaSuccess) return status;
  return launch(kernel, dim3(blocks, groups), down_warps * 32, table_bytes(tables), stream, args, tables);
}

}  // namespace ds4::cuda
