// Matrix times 1..16 activation rows, up to eight matrices of any formats in one launch.
// Layout: planes and activations of device_types.hpp; out[token * out_stride + row].
// Preconditions: gemv.hpp. A block belongs to one job (prefix of block counts); warps take tiles of 2 or 4
// rows. Bytes: every weight byte once, activations from L1; FLOPs 2 * rows * cols * tokens. Memory bound to 4
// tokens; at 16 issue slots are busy 30%. Why: one wave of blocks, whose warps go from tile to tile and keep
// up to 8 loads of 16 bytes a lane in flight across them; the first of these are asked for while the kernel
// before still runs, since weights depend on nothing. A lane decodes once for all tokens; more rows per warp
// amortise the activation loads. Matrices of few long rows are split over four warps.
#include <algorithm>

#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/gemv/gemv.hpp"
#include "backend/cuda/gemv/row_dot.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t warps_per_block = 4;
constexpr uint32_t threads_per_block = warps_per_block * 32;

struct Launch {
  GemvJobs jobs;
  uint32_t first_block[GemvJobs::max_jobs + 1];
  uint32_t tokens;
};

/// Few long rows: four warps share a row. Depends on the shape alone, since it is part of the reduction
/// order.
__host__ __device__ constexpr bool is_split(const DeviceMatrix& w) {
  return w.rows <= 2048 && w.cols / chunk_columns(w.type) >= 128;
}

/// Rows of a warp's tile and steps in flight; any values give the same bits.
struct Tile {
  int rows, depth;
};
template <int tokens>
__host__ __device__ constexpr Tile tile_of(TensorType type) {
  const bool wide = chunk_columns(type) >= 32;  // many decoded registers for a row
  const bool plain = chunk_columns(type) <= 8;  // F32 activations take as many registers as the weights
  if (tokens <= 2) return {2, wide ? 2 / tokens : plain ? 4 / tokens : 4};
  if (wide) return {2, 1};
  // Measured: more steps in flight are slower, by up to three times.
  if (tokens == 16) return {2, 2};
  return {4, 1};
}

/// Blocks `block` of `blocks` that share a job. The first weights are asked for before the activations are
/// there.
template <TensorType type, int tokens>
__device__ __forceinline__ void run_job(const GemvJob& job, uint32_t block, uint32_t blocks,
                                        uint32_t token_count, const uint8_t* tables, float* partials) {
  constexpr Tile tile = tile_of<tokens>(type);
  constexpr int count = tile.rows * tokens;
  const bool split = is_split(job.w);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t chunks = job.w.cols / chunk_columns(type);
  const uint32_t share = (chunks + warps_per_block - 1) / warps_per_block;
  const uint32_t begin = split ? warp * share : 0;
  const uint32_t end = split ? min(begin + share, chunks) : chunks;
  const uint32_t stride = split ? blocks : blocks * warps_per_block;
  uint32_t row = (split ? block : block * warps_per_block + warp) * tile.rows;
  WeightStream<type, tile.rows> stream(job.w, row / tile.rows, stride, begin, end);
  typename RowFormat<type>::Raw raw[tile.depth][tile.rows];
#pragma unroll
  for (int j = 0; j < tile.depth; ++j) stream.load(raw[j]);
  wait_for_predecessor();

  const auto input = [&] {
    const uint32_t column = job.rows_per_group == 0 ? 0 : row / job.rows_per_group * job.group_cols;
    return input_row(job.x, 0, column);
  };
  InputRow x = input();
  float sums[count] = {};
  uint32_t first = begin;
  const auto finish_tile = [&] {
    reduce_warp(sums);
    const auto store = [&](uint32_t index, float value) {
      const uint32_t of_tile = row + index / tokens, token = index % tokens;
      if (of_tile < job.w.rows && token < token_count) {
        job.out[size_t{token} * job.out_stride + of_tile] = value;
      }
    };
    if (!split) {
      for_each_reduced(sums, store);
    } else {
      for_each_reduced(sums, [&](uint32_t index, float value) { partials[warp * count + index] = value; });
      __syncthreads();
      if (threadIdx.x < count) {
        float sum = partials[threadIdx.x];
#pragma unroll
        for (uint32_t part = 1; part < warps_per_block; ++part) {
          sum = __fadd_rn(sum, partials[part * count + threadIdx.x]);
        }
        store(threadIdx.x, sum);
      }
      __syncthreads();
    }
    row += stride * tile.rows;
    first = begin;
    x = input();
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
  };
#pragma unroll 1
  while (row < job.w.rows) {
#pragma unroll
    for (int j = 0; j < tile.depth; ++j) {
      if (row >= job.w.rows) break;
      const uint32_t chunk = first + lane;
      if (chunk < end) {
        accumulate_step<type, tile.rows, tokens>(raw[j], chunk, x, job.x.stride, token_count - 1, tables,
                                                 sums);
      }
      stream.load(raw[j]);
      first += 32;
      if (first >= end) finish_tile();
    }
  }
}

template <int tokens>
__global__ void __launch_bounds__(threads_per_block, tokens == 1   ? 6
                                                     : tokens == 2 ? 5
                                                                   : 4)
    gemv_kernel(const __grid_constant__ Launch launch) {
  start_successor();
  extern __shared__ uint4 shared[];
  __shared__ float partials[warps_per_block * 4 * tokens];
  uint8_t* const tables = reinterpret_cast<uint8_t*>(shared);
  int index = 0;
  while (blockIdx.x >= launch.first_block[index + 1]) ++index;
  const GemvJob& job = launch.jobs.job[index];
  const uint32_t block = blockIdx.x - launch.first_block[index];
  const uint32_t blocks = launch.first_block[index + 1] - launch.first_block[index];
  const uint32_t count = launch.tokens;
  switch (job.w.type) {
    case TensorType::q8_0:
      return run_job<TensorType::q8_0, tokens>(job, block, blocks, count, tables, partials);
    case TensorType::f16:
      return run_job<TensorType::f16, tokens>(job, block, blocks, count, tables, partials);
    case TensorType::bf16:
      return run_job<TensorType::bf16, tokens>(job, block, blocks, count, tables, partials);
    case TensorType::f32:
      return run_job<TensorType::f32, tokens>(job, block, blocks, count, tables, partials);
    case TensorType::mxfp4:
      return run_job<TensorType::mxfp4, tokens>(job, block, blocks, count, tables, partials);
    case TensorType::q4_k:
      return run_job<TensorType::q4_k, tokens>(job, block, blocks, count, tables, partials);
    case TensorType::q2_k:
      return run_job<TensorType::q2_k, tokens>(job, block, blocks, count, tables, partials);
    case TensorType::iq2_xxs:
      fill_iq2_pairs(tables);
      __syncthreads();
      return run_job<TensorType::iq2_xxs, tokens>(job, block, blocks, count, tables, partials);
    default:
      return;
  }
}

bool is_valid(const GemvJob& job) {
  const uint32_t chunk = chunk_columns(job.w.type);
  if (chunk == 0 || job.w.cols == 0 || job.w.cols % 32 != 0 || job.x.stride % 32 != 0) return false;
  if (job.rows_per_group % 4 != 0 || job.group_cols % 32 != 0) return false;
  const bool blocks_of_256 = chunk == 64 || job.w.type == TensorType::q4_k;
  return !blocks_of_256 || (job.w.cols % 256 == 0 && job.x.stride % 128 == 0 && job.group_cols % 128 == 0);
}

/// Blocks of every job: one for every tile, or as many as the device holds at a time, shared out by bytes.
template <int tokens>
void place_jobs(Launch& launch, uint32_t resident) {
  const GemvJobs& jobs = launch.jobs;
  uint32_t wanted[GemvJobs::max_jobs] = {}, total = 0;
  double bytes[GemvJobs::max_jobs] = {}, all_bytes = 0;
  for (int i = 0; i < jobs.count; ++i) {
    const DeviceMatrix& w = jobs.job[i].w;
    const uint32_t rows =
        static_cast<uint32_t>(tile_of<tokens>(w.type).rows) * (is_split(w) ? 1 : warps_per_block);
    wanted[i] = (w.rows + rows - 1) / rows;
    total += wanted[i];
    all_bytes += bytes[i] = static_cast<double>(w.rows) * w.cols / chunk_columns(w.type);
  }
  uint32_t blocks = 0;
  for (int i = 0; i < GemvJobs::max_jobs; ++i) {
    launch.first_block[i] = blocks;
    if (total <= resident) {
      blocks += wanted[i];
    } else {
      const auto share = static_cast<uint32_t>(resident * (bytes[i] / all_bytes));
      blocks += std::min(wanted[i], std::max(share, 1u));
    }
  }
  launch.first_block[GemvJobs::max_jobs] = blocks;
}

template <int tokens>
cudaError_t launch_class(const GemvJobs& jobs, int token_count, cudaStream_t stream) {
  Launch arguments;
  arguments.jobs = jobs;
  arguments.tokens = static_cast<uint32_t>(token_count);
  bool tables = false;
  for (int i = 0; i < jobs.count; ++i) tables = tables || jobs.job[i].w.type == TensorType::iq2_xxs;
  const size_t table_bytes = tables ? iq2_pairs_bytes : 0;
  if (tables) {  // with the partial sums more than the 48 KiB that need no asking
    const cudaError_t status = cudaFuncSetAttribute(
        gemv_kernel<tokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(iq2_pairs_bytes));
    if (status != cudaSuccess) return status;
  }
  int device = 0, processors = 0, blocks = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, gemv_kernel<tokens>, static_cast<int>(threads_per_block), table_bytes);
  if (status != cudaSuccess) return status;
  place_jobs<tokens>(arguments, static_cast<uint32_t>(processors * blocks));
  const uint32_t grid = arguments.first_block[GemvJobs::max_jobs];
  if (grid == 0) return cudaSuccess;
  return launch(gemv_kernel<tokens>, grid, threads_per_block, table_bytes, stream, arguments);
}

}  // namespace

cudaError_t gemv(const GemvJobs& jobs, int tokens, cudaStream_t stream) {
  if (jobs.count < 0 || jobs.count > GemvJobs::max_jobs || tokens < 1 || tokens > max_rows) {
    return cudaErrorInvalidValue;
  }
  for (int i = 0; i < jobs.count; ++i) {
    if (!is_valid(jobs.job[i])) return cudaErrorInvalidValue;
  }
  if (tokens == 1) return launch_class<1>(jobs, tokens, stream);
  if (tokens == 2) return launch_class<2>(jobs, tokens, stream);
  if (tokens <= 4) return launch_class<4>(jobs, tokens, stream);
  if (tokens <= 8) return launch_class<8>(jobs, tokens, stream);
  return launch_class<16>(jobs, tokens, stream);
}

}  // namespace ds4::cuda
