// Matrix times 1..256 activation rows on tensor cores, up to eight matrices of any formats in one launch.
// Layout: planes and activations of device_types.hpp; out[token * out_stride + row].
// Preconditions: gemm.hpp. A block makes 64 rows (16 for each of its four warps) by 32 or 64 tokens; blocks
// of the same rows follow each other, so that weights are read from memory once and from L2 after that. FLOPs
// 2 * rows * cols * tokens, three times that for F16. Why: decoding takes the instructions of about two
// products, so it is repeated for every 64 tokens instead of passing weights through shared memory. Bound by
// shared memory and L1: a fragment of activations is read for every tensor-core instruction, and weights come
// as 8 bytes for a lane; the 12 F32 instructions that scale a block come second. Few plain rows (router,
// hyper-connections) have no blocks to fill the device with: there 16 warps share 16 rows by 8 tokens, each
// with its part of the columns.
#include <cstddef>

#include "backend/cuda/gemm/gemm.hpp"
#include "backend/cuda/gemm/tile.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t tile_warps = 4;
constexpr uint32_t tile_threads = tile_warps * 32;
constexpr uint32_t tile_rows = tile_warps * 16;
constexpr uint32_t narrow_warps = 16;
constexpr uint32_t narrow_threads = narrow_warps * 32;

struct Launch {
  GemvJobs jobs;
  uint32_t first_block[GemvJobs::max_jobs + 1];
  uint32_t tokens;
};

/// Few rows of plain weights; depends on the shape alone, since it is part of the order of the sums.
bool is_narrow(const DeviceMatrix& w) {
  return is_plain(w.type) && w.rows <= 256 && w.cols >= 2048;
}

/// Row tiles, which do not cross groups.
struct RowTiles {
  uint32_t group_rows, tiles_per_group, groups;
};
__host__ __device__ RowTiles row_tiles(const GemvJob& job, uint32_t rows_of_tile) {
  const uint32_t rows = job.rows_per_group == 0 ? job.w.rows : job.rows_per_group;
  return {rows, (rows + rows_of_tile - 1) / rows_of_tile, (job.w.rows + rows - 1) / rows};
}

/// The job and the place of a block in it.
struct BlockPlace {
  uint32_t job, token_tile, group, first_row, end_row;
};
__device__ __forceinline__ BlockPlace block_place(const Launch& launch, uint32_t rows_of_tile,
                                                  uint32_t tokens_of_tile) {
  BlockPlace place = {};
  while (blockIdx.x >= launch.first_block[place.job + 1]) ++place.job;
  const GemvJob& job = launch.jobs.job[place.job];
  const RowTiles tiles = row_tiles(job, rows_of_tile);
  const uint32_t block = blockIdx.x - launch.first_block[place.job];
  const uint32_t token_tiles = (launch.tokens + tokens_of_tile - 1) / tokens_of_tile;
  const uint32_t row_tile = block / token_tiles;
  place.token_tile = block % token_tiles;
  place.group = row_tile / tiles.tiles_per_group;
  const uint32_t group_row = place.group * tiles.group_rows;
  place.first_row = group_row + row_tile % tiles.tiles_per_group * rows_of_tile;
  place.end_row = min(group_row + tiles.group_rows, job.w.rows);
  return place;
}

template <int n_tiles>
__global__ void __launch_bounds__(tile_threads, 4) tile_kernel(const __grid_constant__ Launch launch) {
  constexpr uint32_t tokens = n_tiles * 8;
  extern __shared__ uint4 shared[];
  __shared__ uint32_t token_rows[tokens];
  uint8_t* const stages = reinterpret_cast<uint8_t*>(shared);
  uint8_t* const tables = stages + 2 * tokens * stage_bytes_per_token;
  const BlockPlace place = block_place(launch, tile_rows, tokens);
  const GemvJob& job = launch.jobs.job[place.job];
  const uint32_t first_token = place.token_tile * tokens;
  if (threadIdx.x < tokens) token_rows[threadIdx.x] = min(first_token + threadIdx.x, launch.tokens - 1);
  if (job.w.type == TensorType::iq2_xxs) fill_iq2_tables(tables);
  __syncthreads();
  const TileInputs in = {job.x,      job.rows_per_group == 0 ? 0 : place.group * job.group_cols,
                         job.w.cols, token_rows,
                         stages,     tables};
  const uint32_t first_row = place.first_row + threadIdx.x / 32 * 16;
  float sums[1][n_tiles][4] = {};
  for_type(job.w.type, [&](auto type) {
    const LaneRows rows[1] = {lane_rows<decltype(type)::value>(job.w, first_row, place.end_row)};
    multiply<decltype(type)::value, tile_threads>(rows, in, sums);
  });
  const uint32_t g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t token = first_token + n * 8 + 2 * c + i % 2, row = first_row + g + i / 2 * 8;
      if (token < launch.tokens && row < place.end_row) {
        job.out[size_t{token} * job.out_stride + row] = sums[0][n][i];
      }
    }
  }
}

/// The products of 16 rows and 8 tokens over this warp's part of the columns.
template <TensorType type>
__device__ __forceinline__ void narrow_part(const GemvJob& job, const LaneRows& rows, const float* x,
                                            float (&sum)[4]) {
  using Fragments = PlainFragments<type>;
  constexpr uint32_t unroll = 4;
  const uint32_t steps = job.w.cols / 16, share = (steps + narrow_warps - 1) / narrow_warps;
  const uint32_t begin = threadIdx.x / 32 * share, end = min(begin + share, steps);
#pragma unroll 1
  for (uint32_t first = begin; first < end; first += unroll) {
    typename Fragments::Raw raw[unroll];
    float4 inputs[unroll];
#pragma unroll
    for (uint32_t u = 0; u < unroll; ++u) {
      const uint32_t step = min(first + u, end - 1);
      Fragments::load(raw[u], rows, step);
      inputs[u] = __ldg(reinterpret_cast<const float4*>(x + size_t{step} * 16));
    }
    float part[4] = {};
#pragma unroll
    for (uint32_t u = 0; u < unroll; ++u) {
      if (first + u < end) add_split<Fragments::has_minor>(Fragments::split(raw[u]), inputs[u], part);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __fadd_rn(sum[i], part[i]);
  }
}

__global__ void __launch_bounds__(narrow_threads) narrow_kernel(const __grid_constant__ Launch launch) {
  __shared__ float partials[narrow_warps][128];  // [token][row] of 8 x 16
  const BlockPlace place = block_place(launch, 16, 8);
  const GemvJob& job = launch.jobs.job[place.job];
  const uint32_t g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, first_token = place.token_tile * 8;
  const uint32_t column = job.rows_per_group == 0 ? 0 : place.group * job.group_cols;
  const float* const x =
      job.x.f32 + size_t{min(first_token + g, launch.tokens - 1)} * job.x.stride + column + 4 * c;
  float sum[4] = {};
  const auto run = [&](auto type) {
    narrow_part<decltype(type)::value>(
        job, lane_rows<decltype(type)::value>(job.w, place.first_row, place.end_row), x, sum);
  };
  if (job.w.type == TensorType::f16) {
    run(std::integral_constant<TensorType, TensorType::f16>{});
  } else if (job.w.type == TensorType::bf16) {
    run(std::integral_constant<TensorType, TensorType::bf16>{});
  } else {
    run(std::integral_constant<TensorType, TensorType::f32>{});
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) partials[threadIdx.x / 32][(2 * c + i % 2) * 16 + g + i / 2 * 8] = sum[i];
  __syncthreads();
  const uint32_t token = first_token + threadIdx.x / 16, row = place.first_row + threadIdx.x % 16;
  if (threadIdx.x >= 128 || token >= launch.tokens || row >= place.end_row) return;
  float total = partials[0][threadIdx.x];
#pragma unroll
  for (uint32_t warp = 1; warp < narrow_warps; ++warp) {
    total = __fadd_rn(total, partials[warp][threadIdx.x]);
  }
  job.out[size_t{token} * job.out_stride + row] = total;
}

bool is_valid(const GemvJob& job) {
  const uint32_t chunk = chunk_columns(job.w.type);
  if (chunk == 0 || job.w.cols == 0 || job.w.cols % 32 != 0 || job.x.stride % 32 != 0) return false;
  if (job.group_cols % 32 != 0) return false;
  const bool blocks_of_256 = chunk == 64 || job.w.type == TensorType::q4_k;
  return !blocks_of_256 || job.w.cols % 256 == 0;
}

/// The jobs that are narrow, or those that are not, and their blocks; returns how many blocks.
uint32_t make_launch(const GemvJobs& jobs, bool narrow, uint32_t tokens, uint32_t tokens_of_tile,
                     Launch& launch, bool& needs_tables) {
  launch.jobs.count = 0;
  launch.tokens = tokens;
  uint32_t blocks = 0;
  for (int i = 0; i < jobs.count; ++i) {
    const GemvJob& job = jobs.job[i];
    if (job.w.rows == 0 || is_narrow(job.w) != narrow) continue;
    const RowTiles tiles = row_tiles(job, narrow ? 16 : tile_rows);
    launch.first_block[launch.jobs.count] = blocks;
    launch.jobs.job[launch.jobs.count++] = job;
    blocks += tiles.groups * tiles.tiles_per_group * ((tokens + tokens_of_tile - 1) / tokens_of_tile);
    needs_tables = needs_tables || job.w.type == TensorType::iq2_xxs;
  }
  for (int i = launch.jobs.count; i <= GemvJobs::max_jobs; ++i) launch.first_block[i] = blocks;
  return blocks;
}

template <int n_tiles>
cudaError_t launch_tiles(const GemvJobs& jobs, uint32_t tokens, cudaStream_t stream) {
  Launch launch;
  bool tables = false;
  const uint32_t blocks = make_launch(jobs, false, tokens, n_tiles * 8, launch, tables);
  if (blocks == 0) return cudaSuccess;
  const uint32_t bytes = 2 * n_tiles * 8 * stage_bytes_per_token + (tables ? iq2_tables_bytes : 0);
  const cudaError_t status = cudaFuncSetAttribute(
      tile_kernel<n_tiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  tile_kernel<n_tiles><<<blocks, tile_threads, bytes, stream>>>(launch);
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t gemm(const GemvJobs& jobs, int tokens, cudaStream_t stream) {
  if (jobs.count < 0 || jobs.count > GemvJobs::max_jobs || tokens < 1 || tokens > max_gemm_tokens) {
    return cudaErrorInvalidValue;
  }
  for (int i = 0; i < jobs.count; ++i) {
    if (!is_valid(jobs.job[i])) return cudaErrorInvalidValue;
  }
  const uint32_t count = static_cast<uint32_t>(tokens);
  Launch narrow;
  bool tables = false;
  const uint32_t narrow_blocks = make_launch(jobs, true, count, 8, narrow, tables);
  if (narrow_blocks != 0) {
    narrow_kernel<<<narrow_blocks, narrow_threads, 0, stream>>>(narrow);
    const cudaError_t status = cudaPeekAtLastError();
    if (status != cudaSuccess) return status;
  }
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  Launch sized;
  const uint32_t wide_blocks = make_launch(jobs, false, count, 64, sized, tables);
  // Narrower token tiles when those of 64 would leave processors idle.
  if (count > 32 && wide_blocks >= 2 * static_cast<uint32_t>(processors)) {
    return launch_tiles<8>(jobs, count, stream);
  }
  return launch_tiles<4>(jobs, count, stream);
}

}  // namespace ds4::cuda
