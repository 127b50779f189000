// Matrix times 1..16 activation rows, up to eight matrices of any formats in one launch.
// Layout: planes and activations of device_types.hpp; out[token * out_stride + row].
// Preconditions: gemv.hpp. A block belongs to one job (prefix of block counts); warps take 2 or 4 rows
// each. Bytes: every weight byte once, activations from L1; FLOPs 2 * rows * cols * tokens. Memory bound to 8
// tokens, near the dp4a rate at 16. Why: a lane streams 16 bytes per row and step with 2 to 8 loads in
// flight, and decodes once for all tokens; more rows per warp amortise the activation loads. Matrices of few
// long rows are split over four warps.
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

/// Rows of a warp and chunks of each in flight; any values give the same bits.
struct Tile {
  int rows, unroll;
};
template <int tokens>
__host__ __device__ constexpr Tile tile_of(TensorType type) {
  const bool wide = chunk_columns(type) >= 32;  // many decoded registers for a row
  const bool plain = chunk_columns(type) <= 8;  // F32 activations take as many registers as the weights
  if (tokens == 1) return {2, wide ? 1 : 2};
  if (tokens == 2) return {2, wide ? 1 : plain ? 2 : 4};
  if (wide) return {2, 1};
  return {4, plain || tokens == 16 ? 1 : 2};
}

template <TensorType type, int tokens>
__device__ __forceinline__ void run_job(const GemvJob& job, uint32_t block, uint32_t token_count,
                                        const uint8_t* tables, float* partials) {
  constexpr Tile tile = tile_of<tokens>(type);
  constexpr int count = tile.rows * tokens;
  const bool split = is_split(job.w);
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t first_row = (split ? block : block * warps_per_block + warp) * tile.rows;
  if (first_row >= job.w.rows) return;  // never in a split block
  WeightRow rows[tile.rows];
#pragma unroll
  for (int r = 0; r < tile.rows; ++r) {
    rows[r] = weight_row<type>(job.w, min(first_row + r, job.w.rows - 1));
  }
  const uint32_t column = job.rows_per_group == 0 ? 0 : first_row / job.rows_per_group * job.group_cols;
  const uint32_t chunks = job.w.cols / chunk_columns(type);
  const uint32_t share = (chunks + warps_per_block - 1) / warps_per_block;
  const uint32_t begin = split ? warp * share : 0;
  const uint32_t end = split ? min(begin + share, chunks) : chunks;
  float sums[count] = {};
  accumulate_rows<type, tile.rows, tokens, tile.unroll>(rows, input_row(job.x, 0, column), job.x.stride,
                                                        token_count - 1, begin, end, tables, sums);
  reduce_warp(sums);
  const auto store = [&](uint32_t index, float value) {
    const uint32_t row = first_row + index / tokens, token = index % tokens;
    if (row < job.w.rows && token < token_count) job.out[size_t{token} * job.out_stride + row] = value;
  };
  if (!split) {
    for_each_reduced(sums, store);
    return;
  }
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
}

template <int tokens>
__global__ void __launch_bounds__(threads_per_block, tokens == 1   ? 8
                                                     : tokens == 2 ? 5
                                                     : tokens <= 4 ? 4
                                                                   : 3)
    gemv_kernel(const __grid_constant__ Launch launch) {
  extern __shared__ uint4 shared[];
  __shared__ float partials[warps_per_block * 4 * tokens];
  uint8_t* const tables = reinterpret_cast<uint8_t*>(shared);
  int index = 0;
  while (blockIdx.x >= launch.first_block[index + 1]) ++index;
  const GemvJob& job = launch.jobs.job[index];
  const uint32_t block = blockIdx.x - launch.first_block[index];
  const uint32_t count = launch.tokens;
  switch (job.w.type) {
    case TensorType::q8_0:
      return run_job<TensorType::q8_0, tokens>(job, block, count, tables, partials);
    case TensorType::f16:
      return run_job<TensorType::f16, tokens>(job, block, count, tables, partials);
    case TensorType::bf16:
      return run_job<TensorType::bf16, tokens>(job, block, count, tables, partials);
    case TensorType::f32:
      return run_job<TensorType::f32, tokens>(job, block, count, tables, partials);
    case TensorType::mxfp4:
      return run_job<TensorType::mxfp4, tokens>(job, block, count, tables, partials);
    case TensorType::q4_k:
      return run_job<TensorType::q4_k, tokens>(job, block, count, tables, partials);
    case TensorType::q2_k:
      return run_job<TensorType::q2_k, tokens>(job, block, count, tables, partials);
    case TensorType::iq2_xxs:
      fill_iq2_pairs(tables);
      __syncthreads();
      return run_job<TensorType::iq2_xxs, tokens>(job, block, count, tables, partials);
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

template <int tokens>
cudaError_t launch_class(const GemvJobs& jobs, int token_count, cudaStream_t stream) {
  Launch launch;
  launch.jobs = jobs;
  launch.tokens = static_cast<uint32_t>(token_count);
  uint32_t blocks = 0;
  bool tables = false;
  for (int i = 0; i < jobs.count; ++i) {
    const DeviceMatrix& w = jobs.job[i].w;
    const uint32_t rows =
        static_cast<uint32_t>(tile_of<tokens>(w.type).rows) * (is_split(w) ? 1 : warps_per_block);
    launch.first_block[i] = blocks;
    blocks += (w.rows + rows - 1) / rows;
    tables = tables || w.type == TensorType::iq2_xxs;
  }
  for (int i = jobs.count; i <= GemvJobs::max_jobs; ++i) launch.first_block[i] = blocks;
  if (blocks == 0) return cudaSuccess;
  if (tables) {  // with the partial sums more than the 48 KiB that need no asking
    const cudaError_t status = cudaFuncSetAttribute(
        gemv_kernel<tokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(iq2_pairs_bytes));
    if (status != cudaSuccess) return status;
  }
  gemv_kernel<tokens><<<blocks, threads_per_block, tables ? iq2_pairs_bytes : 0, stream>>>(launch);
  return cudaPeekAtLastError();
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
