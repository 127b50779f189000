// F16 products on the warpgroup tensor cores of sm_90a: 128 tokens by 256, 128 or 64 rows a tile.
// Layout: x [tokens][stride] and w [rows][cols] in F16, both contiguous along the sum; tiles of 64 columns in
// the 128-byte swizzle. Results F32 or F16 [token][out_stride].
// Preconditions: half_gemm_tiles.cuh; columns a multiple of 8, addresses of 16 bytes.
// FLOPs 2 * tokens * rows * cols per term; a tile of 256 rows reads 48 KiB for 4.2 MFLOP: 1,024 cycles of the
// tensor cores, 48 bytes a cycle from L2.
// Why: one thread keeps four or more stages of copies in flight and runs ahead into the next tile while the
// two consumer warpgroups (64 tokens each) store results; they drift apart by up to the stages, so that one
// multiplies while the other stores. All edges come as zeros from the copy engine.
#include <algorithm>
#include <vector>

#include "backend/cuda/device/tensor_map.hpp"
#include "backend/cuda/gemm/half_gemm_tiles.cuh"
#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t stage_columns = 64;
constexpr uint32_t x_bytes = tokens_of_half_tile * stage_columns * 2;
constexpr uint32_t consumers = 2;
constexpr uint32_t kernel_threads = (1 + consumers) * 128;

/// As many stages as fit 227 KiB.
__host__ __device__ constexpr uint32_t stage_bytes(uint32_t widest) {
  return x_bytes + widest * stage_columns * 2;
}
__host__ __device__ constexpr uint32_t stage_count(uint32_t widest) {
  return widest == 256 ? 4 : widest == 128 ? 7 : 9;
}
constexpr uint32_t shared_bytes(uint32_t widest) {
  return stage_count(widest) * stage_bytes(widest) + 1024;
}

struct Launch {
  CUtensorMap x[max_half_products][2], w[max_half_products][2];
  HalfTiles tiles;
};

__host__ __device__ constexpr uint32_t steps_of(uint32_t cols) {
  return (cols + stage_columns - 1) / stage_columns;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr uint32_t band_tiles = 16;

template <uint32_t widest>
struct Pipeline {
  static constexpr uint32_t stages = stage_count(widest);
  uint64_t* full;
  uint64_t* empty;
  uint8_t* buffer;
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint8_t* x() const { return buffer + stage * stage_bytes(widest); }
  __device__ __forceinline__ uint8_t* w() const { return x() + x_bytes; }
  __device__ __forceinline__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// One thread: every copy of every tile of this block.
template <uint32_t widest>
__device__ __forceinline__ void produce(const Launch& launch, Pipeline<widest> pipe) {
  const HalfTiles& tiles = launch.tiles;
  pipe.parity = 1;  // the first pass over the stages finds them free
  for (uint32_t i = blockIdx.x; i < tiles.tiles; i += gridDim.x) {
    const HalfTile tile = half_tile(tiles, i, band_tiles);
    const HalfTiledProduct& p = tiles.product[tile.product];
    const int32_t token = static_cast<int32_t>(tile.token_tile * tokens_of_half_tile);
    const int32_t row = static_cast<int32_t>(tile.first_row), group = static_cast<int32_t>(tile.group);
    const uint32_t steps = steps_of(p.cols), bytes = x_bytes + p.tile_rows * stage_columns * 2;
    const bool grouped = p.group_rows < p.rows;
    for (uint32_t term = 0; term < p.terms; ++term) {
      const CUtensorMap* const x = &launch.x[tile.product][x_plane(term)];
      const CUtensorMap* const w = &launch.w[tile.product][w_plane(term)];
      for (uint32_t step = 0; step < steps; ++step, pipe.advance()) {
        const int32_t column = static_cast<int32_t>(step * stage_columns);
        uint64_t* const full = pipe.full + pipe.stage;
        barrier_wait(pipe.empty + pipe.stage, pipe.parity);
        barrier_arrive_expect(full, bytes);
        if (grouped) {
          copy_tensor(pipe.x(), x, full, column, group, token);
        } else {
          copy_tensor(pipe.x(), x, full, column, token);
        }
        copy_tensor(pipe.w(), w, full, column, row);
      }
    }
  }
}

/// This warpgroup has read a stage.
__device__ __forceinline__ void release(uint64_t* empty) {
  if (threadIdx.x % 128 == 0) barrier_arrive(empty);
}

/// A tile's sums for the 64 tokens of this warpgroup, and their results. While the last products run it finds
/// the next tile.
template <int n, uint32_t widest>
__device__ __forceinline__ void consume(const HalfTiles& tiles, HalfTile& tile, uint32_t next,
                                        Pipeline<widest>& pipe) {
  const HalfTiledProduct& p = tiles.product[tile.product];
  float c[n / 2];
  const uint32_t steps = steps_of(p.cols) * p.terms, group = threadIdx.x / 128 - 1;
  uint64_t* read = nullptr;
  for (uint32_t step = 0; step < steps; ++step, pipe.advance()) {
    barrier_wait(pipe.full + pipe.stage, pipe.parity);
    uint64_t x = wgmma_tile(pipe.x() + group * (x_bytes / consumers)), w = wgmma_tile(pipe.w());
    wgmma_begin();
#pragma unroll
    for (uint32_t k = 0; k < stage_columns / 16; ++k) {
      wgmma_f16(c, x, w, k != 0 || step != 0);
      x = wgmma_next_columns(x);
      w = wgmma_next_columns(w);
    }
    wgmma_commit();
    if (step != 0) {
      wgmma_wait<1>();
      release(read);
    }
    read = pipe.empty + pipe.stage;
  }
  const uint32_t token = tile.token_tile * tokens_of_half_tile + group * 64 + threadIdx.x % 128 / 32 * 16;
  const uint32_t first_row = tile.first_row, end_row = tile.end_row;
  tile = half_tile(tiles, min(next, tiles.tiles - 1), band_tiles);
  wgmma_wait<0>();
  wgmma_pin(c);
  release(read);
  store_tile<n>(p, c, token, tiles.tokens, first_row, end_row);
}

#endif

/// `widest` 256: every tile has 256 rows, since accumulators of several widths in one kernel do not fit the
/// registers; 128: 128 or 64; 64: 64. Without code for sm_90a the kernel is empty.
template <uint32_t widest>
__global__ void __launch_bounds__(kernel_threads, 1) wgmma_kernel(const __grid_constant__ Launch launch) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t barriers[2 * stage_count(widest)];
  Pipeline<widest> pipe = {barriers, barriers + stage_count(widest),
                           unaligned + (1024 - shared_address(unaligned) % 1024) % 1024};
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < stage_count(widest); ++i) {
      barrier_init(pipe.full + i, 1);
      barrier_init(pipe.empty + i, consumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    shrink_registers<40>();
    if (threadIdx.x == 0) produce(launch, pipe);
  } else {
    grow_registers<232>();
    const HalfTiles& tiles = launch.tiles;
    HalfTile tile = half_tile(tiles, blockIdx.x, band_tiles);
    for (uint32_t i = blockIdx.x; i < tiles.tiles; i += gridDim.x) {
      if constexpr (widest == 256) {
        consume<256>(tiles, tile, i + gridDim.x, pipe);
      } else if (widest == 128 && tiles.product[tile.product].tile_rows == 128) {
        consume<128>(tiles, tile, i + gridDim.x, pipe);
      } else {
        consume<64>(tiles, tile, i + gridDim.x, pipe);
      }
    }
  }
#endif
}

/// Cycles of a step of a tile, and of storing a tile; measured. Only the choice of tiles depends on them.
constexpr uint32_t step_cycles(uint32_t tile_rows) {
  return tile_rows == 256 ? 1080 : tile_rows == 128 ? 560 : 500;
}
constexpr uint32_t store_cycles(const HalfTiledProduct& p) {
  return p.tile_rows * (p.out != nullptr ? 21 : 13);
}

HalfTiledProduct tiled(const HalfProduct& product, uint32_t widest) {
  return tiled_product(product, widest == 128 && product.job.w.rows <= 64 ? 64 : widest);
}

uint64_t cycles_of_tile(const HalfTiledProduct& p) {
  return uint64_t{p.terms} * steps_of(p.cols) * step_cycles(p.tile_rows) + store_cycles(p);
}

/// Products in the order of their tiles.
struct Plan {
  HalfTiles tiles;
  const HalfProduct* order[max_half_products];
  uint64_t cycles;  // of the busiest block
};

/// The longest tiles come first, so that the short ones fill the last round.
Plan make_plan(std::span<const HalfProduct> products, uint32_t tokens, uint32_t widest, uint32_t blocks) {
  Plan plan = {};
  HalfTiles& tiles = plan.tiles;
  tiles.tokens = tokens;
  tiles.token_tiles = (tokens + tokens_of_half_tile - 1) / tokens_of_half_tile;
  tiles.products = static_cast<uint32_t>(products.size());
  for (size_t i = 0; i < products.size(); ++i) plan.order[i] = &products[i];
  std::stable_sort(plan.order, plan.order + products.size(), [&](const HalfProduct* a, const HalfProduct* b) {
    return cycles_of_tile(tiled(*a, widest)) > cycles_of_tile(tiled(*b, widest));
  });
  std::vector<uint64_t> busy(blocks);
  for (uint32_t i = 0; i < tiles.products; ++i) {
    HalfTiledProduct& p = tiles.product[i];
    p = tiled(*plan.order[i], widest);
    p.first_tile = tiles.tiles;
    const uint32_t count = row_tiles(p) * tiles.token_tiles, first = tiles.tiles % blocks;
    for (uint32_t j = 0; j < blocks; ++j) {
      uint64_t& block = busy[(first + j) % blocks];
      block += (count / blocks + (j < count % blocks ? 1 : 0)) * cycles_of_tile(p);
      plan.cycles = std::max(plan.cycles, block);
    }
    tiles.tiles += count;
  }
  return plan;
}

cudaError_t make_maps(const HalfProduct& product, const HalfTiledProduct& p, uint32_t tokens,
                      CUtensorMap (&x)[2], CUtensorMap (&w)[2]) {
  const HalfGemmJob& job = product.job;
  const bool grouped = p.group_rows < p.rows;
  const uint32_t groups = grouped ? (p.rows + p.group_rows - 1) / p.group_rows : 1;
  const __half* const xs[2] = {job.x.high, job.x.low};
  const __half* const ws[2] = {product.w_high, product.w_low};
  for (int plane = 0; plane < 2; ++plane) {
    if (xs[plane] != nullptr) {
      const HalfTensor tensor = {
          xs[plane], p.cols, tokens, job.x.stride, tokens_of_half_tile, groups, grouped ? job.group_cols : 0};
      const cudaError_t status = make_tensor_map(tensor, x[plane]);
      if (status != cudaSuccess) return status;
    }
    if (ws[plane] != nullptr) {
      const cudaError_t status = make_tensor_map({ws[plane], p.cols, p.rows, p.cols, p.tile_rows}, w[plane]);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

template <uint32_t widest>
cudaError_t launch_kernel(const Launch& launch, uint32_t blocks, cudaStream_t stream) {
  const cudaError_t status =
      cudaFuncSetAttribute(wgmma_kernel<widest>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes(widest)));
  if (status != cudaSuccess) return status;
  wgmma_kernel<widest>
      <<<std::min(blocks, launch.tiles.tiles), kernel_threads, shared_bytes(widest), stream>>>(launch);
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t half_gemm_wgmma(std::span<const HalfProduct> products, uint32_t tokens, cudaStream_t stream) {
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const uint32_t blocks = static_cast<uint32_t>(processors);
  uint32_t best = 256;
  Plan plan = make_plan(products, tokens, best, blocks);
  for (const uint32_t widest : {128u, 64u}) {
    const Plan other = make_plan(products, tokens, widest, blocks);
    if (other.cycles >= plan.cycles) continue;
    best = widest;
    plan = other;
  }
  Launch launch;
  launch.tiles = plan.tiles;
  for (uint32_t i = 0; i < products.size(); ++i) {
    const cudaError_t status =
        make_maps(*plan.order[i], plan.tiles.product[i], tokens, launch.x[i], launch.w[i]);
    if (status != cudaSuccess) return status;
  }
  switch (best) {
    case 256:
      return launch_kernel<256>(launch, blocks, stream);
    case 128:
      return launch_kernel<128>(launch, blocks, stream);
    default:
      return launch_kernel<64>(launch, blocks, stream);
  }
}

}  // namespace ds4::cuda
