// F16 products on the warpgroup tensor cores of sm_90a: 128 tokens by 256, 128 or 64 rows a tile.
// Layout: x [tokens][stride] and w [rows][cols] in F16, both contiguous along the sum; tiles of 64 columns in
// the 128-byte swizzle. Results F32 or F16 [token][out_stride].
// Preconditions: half_gemm_tiles.cuh; columns a multiple of 8, addresses of 16 bytes.
// FLOPs 2 * tokens * rows * cols per term; a tile of 256 rows reads 48 KiB for 4.2 MFLOP: 1,024 cycles of the
// tensor cores, 48 bytes a cycle from L2, 32 when two blocks share the weights.
// Why: one thread keeps four stages of copies in flight and runs ahead into the next tile while the two
// consumer warpgroups (64 tokens each) store results; they drift apart by up to the stages, so that one
// multiplies while the other stores. All edges come as zeros from the copy engine.
#include <algorithm>

#include "backend/cuda/device/tensor_map.hpp"
#include "backend/cuda/gemm/half_gemm_tiles.cuh"
#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace ds4::cuda {
namespace {

constexpr uint32_t stage_columns = 64;
constexpr uint32_t stages = 4;
constexpr uint32_t x_bytes = tokens_of_half_tile * stage_columns * 2;
constexpr uint32_t stage_bytes = x_bytes + 256 * stage_columns * 2;
constexpr uint32_t shared_bytes = stages * stage_bytes + 1024;
constexpr uint32_t consumers = 2;
constexpr uint32_t kernel_threads = (1 + consumers) * 128;
constexpr uint32_t band_tiles = 16;

struct Launch {
  CUtensorMap x[max_half_products][2], w[max_half_products][2];
  HalfTiles tiles;
};

struct Pipeline {
  uint64_t* full;
  uint64_t* empty;
  uint8_t* buffer;
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint8_t* x() const { return buffer + stage * stage_bytes; }
  __device__ __forceinline__ uint8_t* w() const { return x() + x_bytes; }
  __device__ __forceinline__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ uint32_t steps_of(const HalfTiledProduct& p) {
  return (p.cols + stage_columns - 1) / stage_columns;
}

/// One thread: every copy of every tile of this block. With a cluster each block copies its half of the
/// weights for both.
template <uint32_t cluster>
__device__ __forceinline__ void produce(const Launch& launch, Pipeline pipe, uint32_t rank) {
  const HalfTiles& tiles = launch.tiles;
  pipe.parity = 1;  // the first pass over the stages finds them free
  for (uint32_t i = blockIdx.x / cluster; i < tiles.tiles; i += gridDim.x / cluster) {
    const HalfTile tile = half_tile(tiles, i, band_tiles / cluster);
    const HalfTiledProduct& p = tiles.product[tile.product];
    const int32_t token = static_cast<int32_t>((tile.token_tile * cluster + rank) * tokens_of_half_tile);
    const uint32_t steps = steps_of(p), part_rows = p.tile_rows / cluster;
    const bool grouped = p.group_rows < p.rows;
    for (uint32_t term = 0; term < p.terms; ++term) {
      const CUtensorMap* const x = &launch.x[tile.product][x_plane(term)];
      const CUtensorMap* const w = &launch.w[tile.product][w_plane(term)];
      for (uint32_t step = 0; step < steps; ++step, pipe.advance()) {
        const int32_t column = static_cast<int32_t>(step * stage_columns);
        uint64_t* const full = pipe.full + pipe.stage;
        if constexpr (cluster > 1) {
          barrier_wait_cluster(pipe.empty + pipe.stage, pipe.parity);
        } else {
          barrier_wait(pipe.empty + pipe.stage, pipe.parity);
        }
        barrier_arrive_expect(full, x_bytes + p.tile_rows * stage_columns * 2);
        if (grouped) {
          copy_tensor(pipe.x(), x, full, column, static_cast<int32_t>(tile.group), token);
        } else {
          copy_tensor(pipe.x(), x, full, column, token);
        }
        const int32_t row = static_cast<int32_t>(tile.first_row + rank * part_rows);
        if constexpr (cluster > 1) {
          copy_tensor_multicast(pipe.w() + rank * part_rows * stage_columns * 2, w, full, (1u << cluster) - 1,
                                column, row);
        } else {
          copy_tensor(pipe.w(), w, full, column, row);
        }
      }
    }
  }
}

/// This warpgroup has read a stage.
template <uint32_t cluster>
__device__ __forceinline__ void release(uint64_t* empty) {
  if constexpr (cluster > 1) {
    if (threadIdx.x % 128 < cluster) barrier_arrive_cluster(empty, threadIdx.x % 128);
  } else {
    if (threadIdx.x % 128 == 0) barrier_arrive(empty);
  }
}

/// A tile's sums for the 64 tokens of this warpgroup, and their results.
template <uint32_t cluster, int n>
__device__ __forceinline__ void consume(const HalfTiledProduct& p, const HalfTile& tile, uint32_t tokens,
                                        uint32_t first_token, Pipeline& pipe) {
  float c[n / 2];
  const uint32_t steps = steps_of(p) * p.terms, group = threadIdx.x / 128 - 1;
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
      release<cluster>(read);
    }
    read = pipe.empty + pipe.stage;
  }
  wgmma_wait<0>();
  wgmma_pin(c);
  release<cluster>(read);
  const uint32_t token = first_token + group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  store_tile<n>(p, c, token, tokens, tile.first_row, tile.end_row);
}

__device__ __forceinline__ uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
template <uint32_t cluster>
__device__ __forceinline__ void synchronise() {
  if constexpr (cluster > 1) {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
  } else {
    __syncthreads();
  }
}

#endif

/// `widest` 256: every tile has 256 rows, since accumulators of several widths in one kernel do not fit the
/// registers; 128: 128 or 64. Without code for sm_90a the kernel is empty; has_half_gemm_wgmma() sees it by
/// the missing barriers.
template <uint32_t cluster, uint32_t widest>
__global__ void __launch_bounds__(kernel_threads, 1) wgmma_kernel(const __grid_constant__ Launch launch) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t barriers[2 * stages];
  const uint32_t rank = cluster > 1 ? rank_in_cluster() : 0;
  Pipeline pipe = {barriers, barriers + stages, unaligned + (1024 - shared_address(unaligned) % 1024) % 1024};
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < stages; ++i) {
      barrier_init(pipe.full + i, 1);
      barrier_init(pipe.empty + i, consumers * cluster);
    }
    barrier_init_fence();
  }
  synchronise<cluster>();
  if (threadIdx.x < 128) {
    shrink_registers<40>();
    if (threadIdx.x == 0) produce<cluster>(launch, pipe, rank);
  } else {
    grow_registers<232>();
    const HalfTiles& tiles = launch.tiles;
    for (uint32_t i = blockIdx.x / cluster; i < tiles.tiles; i += gridDim.x / cluster) {
      const HalfTile tile = half_tile(tiles, i, band_tiles / cluster);
      const HalfTiledProduct& p = tiles.product[tile.product];
      const uint32_t token = (tile.token_tile * cluster + rank) * tokens_of_half_tile;
      if constexpr (widest == 256) {
        consume<cluster, 256>(p, tile, tiles.tokens, token, pipe);
      } else if (p.tile_rows == 128) {
        consume<cluster, 128>(p, tile, tiles.tokens, token, pipe);
      } else {
        consume<cluster, 64>(p, tile, tiles.tokens, token, pipe);
      }
    }
  }
  if constexpr (cluster > 1) synchronise<cluster>();  // the other block may still write here
#endif
}

/// Cycles of a step of a tile, measured; only the choice of tiles depends on it.
uint32_t step_cycles(uint32_t tile_rows) {
  return tile_rows == 256 ? 1100 : tile_rows == 128 ? 620 : 400;
}

HalfTiledProduct tiled(const HalfProduct& product, uint32_t widest) {
  return tiled_product(product, widest == 128 && product.job.w.rows <= 64 ? 64 : widest);
}

uint64_t tile_cycles(const HalfTiledProduct& p) {
  constexpr uint32_t start_and_end = 2000;
  return uint64_t{p.terms} * ((p.cols + stage_columns - 1) / stage_columns) * step_cycles(p.tile_rows) +
         start_and_end;
}

/// The tiles, longest first, and the time of the busiest block.
uint64_t plan(std::span<const HalfProduct> products, uint32_t tokens, uint32_t widest, uint32_t cluster,
              uint32_t clusters, HalfTiles& tiles, uint32_t (&order)[max_half_products]) {
  tiles = {};
  tiles.tokens = tokens;
  tiles.products = static_cast<uint32_t>(products.size());
  const uint32_t tokens_of_tile = tokens_of_half_tile * cluster;
  tiles.token_tiles = (tokens + tokens_of_tile - 1) / tokens_of_tile;
  HalfTiledProduct all[max_half_products];
  for (uint32_t i = 0; i < tiles.products; ++i) {
    all[i] = tiled(products[i], widest);
    order[i] = i;
  }
  std::stable_sort(order, order + tiles.products,
                   [&](uint32_t a, uint32_t b) { return tile_cycles(all[a]) > tile_cycles(all[b]); });
  constexpr uint32_t max_clusters = 512;
  uint64_t busy[max_clusters] = {}, longest = 0;
  clusters = std::min(clusters, max_clusters);
  for (uint32_t i = 0; i < tiles.products; ++i) {
    HalfTiledProduct& p = tiles.product[i];
    p = all[order[i]];
    p.first_tile = tiles.tiles;
    const uint32_t count = row_tiles(p) * tiles.token_tiles;
    for (uint32_t j = 0; j < clusters; ++j) {
      const uint32_t place = (j + clusters - tiles.tiles % clusters) % clusters;
      busy[j] += (count / clusters + (place < count % clusters ? 1 : 0)) * tile_cycles(p);
      longest = std::max(longest, busy[j]);
    }
    tiles.tiles += count;
  }
  return longest;
}

cudaError_t make_maps(const HalfProduct& product, const HalfTiledProduct& p, uint32_t tokens,
                      uint32_t cluster, CUtensorMap (&x)[2], CUtensorMap (&w)[2]) {
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
      const cudaError_t status =
          make_tensor_map({ws[plane], p.cols, p.rows, p.cols, p.tile_rows / cluster}, w[plane]);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

template <uint32_t cluster, uint32_t widest>
cudaError_t launch_kernel(const Launch& launch, uint32_t clusters, cudaStream_t stream) {
  cudaError_t status =
      cudaFuncSetAttribute(wgmma_kernel<cluster, widest>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes));
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = std::min(clusters, launch.tiles.tiles) * cluster;
  config.blockDim = kernel_threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, wgmma_kernel<cluster, widest>, launch);
}

}  // namespace

bool has_half_gemm_wgmma() {
  static const bool has = [] {
    int device = 0, major = 0, minor = 0;
    cudaFuncAttributes attributes = {};
    if (cudaGetDevice(&device) != cudaSuccess) return false;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (major != 9 || minor != 0) return false;
    return cudaFuncGetAttributes(&attributes, wgmma_kernel<1, 256>) == cudaSuccess &&
           attributes.sharedSizeBytes != 0;
  }();
  return has;
}

cudaError_t half_gemm_wgmma(std::span<const HalfProduct> products, uint32_t tokens, cudaStream_t stream) {
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const uint32_t count = static_cast<uint32_t>(processors);
  Launch launch;
  HalfTiles tiles;
  uint32_t order[max_half_products], best_order[max_half_products], best_cluster = 1, best_widest = 256;
  uint64_t best = ~uint64_t{0};
  for (const uint32_t cluster : {2u, 1u}) {
    for (const uint32_t widest : {256u, 128u, 64u}) {
      const uint64_t cycles = plan(products, tokens, widest, cluster, count / cluster, tiles, order);
      if (cycles >= best) continue;
      best = cycles;
      best_cluster = cluster;
      best_widest = widest;
      launch.tiles = tiles;
      std::copy(order, order + products.size(), best_order);
    }
  }
  for (uint32_t i = 0; i < products.size(); ++i) {
    const cudaError_t status = make_maps(products[best_order[i]], launch.tiles.product[i], tokens,
                                         best_cluster, launch.x[i], launch.w[i]);
    if (status != cudaSuccess) return status;
  }
  if (best_widest == 256) {
    return best_cluster == 2 ? launch_kernel<2, 256>(launch, count / 2, stream)
                             : launch_kernel<1, 256>(launch, count, stream);
  }
  return best_cluster == 2 ? launch_kernel<2, 128>(launch, count / 2, stream)
                           : launch_kernel<1, 128>(launch, count, stream);
}

}  // namespace ds4::cuda
