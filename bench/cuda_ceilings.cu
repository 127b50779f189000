// What one GPU allows: reading memory, the gap between dependent kernels of a graph, a barrier over the whole
// grid, F16 products on tensor cores. Other results are judged by these numbers (docs/performance.md).
#include <cooperative_groups.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/gemm/half_gemm.hpp"
#include "cuda_timing.hpp"

namespace ds4::bench {
namespace {

// Every thread has four 16-byte loads in flight; the sum keeps them from being left out.
__global__ void read_kernel(const uint4* __restrict__ data, size_t count, uint32_t* sink) {
  const size_t threads = size_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * threads < count; i += 4 * threads) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = __ldcs(data + i + k * threads);
#pragma unroll
    for (int k = 0; k < 4; ++k) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < count; i += threads) sum ^= data[i].x;
  if (sum == 0x12345678u) *sink = sum;
}

template <bool overlapping>
__global__ void small_kernel(uint32_t* counters) {
  if (overlapping) {
    cuda::start_successor();
    cuda::wait_for_predecessor();
  }
  if (threadIdx.x == 0) counters[blockIdx.x] += 1;
}

__global__ void barrier_kernel(int barriers) {
  const auto grid = cooperative_groups::this_grid();
  for (int i = 0; i < barriers; ++i) grid.sync();
}

unsigned multiprocessors() {
  int device = 0, count = 0;
  require(cudaGetDevice(&device));
  require(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return static_cast<unsigned>(count);
}

void read_bandwidth(const Report& report) {
  constexpr size_t mib = size_t{1} << 20;
  size_t free_bytes = 0, total_bytes = 0;
  require(cudaMemGetInfo(&free_bytes, &total_bytes));
  const size_t bytes = std::min(8192 * mib, free_bytes / 2 / mib * mib);
  const Memory data(bytes), sink(64);
  for (const unsigned blocks_each : {1u, 2u, 4u, 8u}) {
    const unsigned blocks = blocks_each * multiprocessors();
    const double us = graph_microseconds(2, [&](int, cudaStream_t stream) {
      read_kernel<<<blocks, 512, 0, stream>>>(data.as<uint4>(), bytes / sizeof(uint4), sink.as<uint32_t>());
      return cudaGetLastError();
    });
    report.add({"read " + std::to_string(bytes / mib) + " MiB, " + std::to_string(blocks) + " blocks of 512",
                us, static_cast<double>(bytes), 0});
  }
}

// From the start of one kernel to the start of the next, which waits for it.
void launch_gaps(const Report& report) {
  const Memory counters(multiprocessors() * sizeof(uint32_t));
  for (const unsigned blocks : {1u, multiprocessors()}) {
    for (const bool overlapping : {false, true}) {
      if (overlapping && !cuda::can_overlap_kernels()) continue;
      const double us = graph_microseconds(2000, [&](int, cudaStream_t stream) {
        if (overlapping) {
          return cuda::launch(small_kernel<true>, dim3(blocks), 128, 0, stream, counters.as<uint32_t>());
        }
        small_kernel<false><<<blocks, 128, 0, stream>>>(counters.as<uint32_t>());
        return cudaGetLastError();
      });
      report.add({"dependent kernel of " + counted(blocks, "block") + " in a graph" +
                      (overlapping ? ", programmatic launch" : ""),
                  us, 0, 0});
    }
  }
}

void grid_barriers(const Report& report) {
  constexpr int barriers = 1000;
  for (const unsigned threads : {256u, 1024u}) {
    int count = barriers;
    void* arguments[] = {&count};
    const double us = graph_microseconds(1, [&](int, cudaStream_t stream) {
      return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(barrier_kernel),
                                         dim3(multiprocessors()), dim3(threads), arguments, 0, stream);
    });
    report.add({"barrier of the grid, " + std::to_string(threads) + " threads a block", us / barriers, 0, 0});
  }
}

void matrix_rate(const Report& report) {
  constexpr uint32_t n = 8192;
  const Memory w(size_t{n} * n * 2), x(size_t{n} * n * 2), out(size_t{n} * n * 2);
  cuda::HalfGemmJob job;
  job.w = {format::TensorType::f16, n, n, w.as<uint8_t>(), nullptr, nullptr};
  job.x = {x.as<__half>(), nullptr, n};
  job.out_half = out.as<__half>();
  job.out_stride = n;
  const Memory scratch(cuda::half_gemm_scratch_bytes({&job, 1}));
  const double us = graph_microseconds(3, [&](int, cudaStream_t stream) {
    return cuda::half_gemm({&job, 1}, static_cast<int>(n), scratch.as<uint8_t>(), stream);
  });
  report.add({"F16 product 8192 x 8192 x 8192 (half_gemm)", us, 0, 2.0 * n * n * n});
}

}  // namespace
}  // namespace ds4::bench

int main(int argc, char** argv) {
  using namespace ds4::bench;
  const Report report(read_options(argc, argv), "ceilings");
  read_bandwidth(report);
  launch_gaps(report);
  grid_barriers(report);
  matrix_rate(report);
  return 0;
}
