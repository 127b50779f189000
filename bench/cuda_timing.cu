#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_timing.hpp"

namespace ds4::bench {
namespace {

__global__ void fill_kernel(uint32_t* words, size_t count) {
  const size_t threads = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    words[i] = static_cast<uint32_t>(x >> 32) & 0xbbffbbffu;  // keeps both halves below 1 in F16
  }
}

}  // namespace

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

Memory::Memory(size_t bytes) : bytes_(bytes) {
  const size_t words = bytes / 4 + 4;
  require(cudaMalloc(reinterpret_cast<void**>(&data_), words * 4));
  fill_kernel<<<1024, 256>>>(reinterpret_cast<uint32_t*>(data_), words);
  require(cudaDeviceSynchronize());
}

double graph_microseconds(int launches, const std::function<cudaError_t(int, cudaStream_t)>& launch) {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) require(launch(i, stream));
  require(cudaStreamEndCapture(stream, &graph));
  require(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  require(cudaGraphLaunch(executable, stream));
  std::array<float, 7> milliseconds{};
  for (float& time : milliseconds) {
    require(cudaEventRecord(begin, stream));
    require(cudaGraphLaunch(executable, stream));
    require(cudaEventRecord(end, stream));
    require(cudaEventSynchronize(end));
    require(cudaEventElapsedTime(&time, begin, end));
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + 3, milliseconds.end());
  require(cudaEventDestroy(begin));
  require(cudaEventDestroy(end));
  require(cudaGraphExecDestroy(executable));
  require(cudaGraphDestroy(graph));
  require(cudaStreamDestroy(stream));
  return 1e3 * milliseconds[3] / launches;
}

Report::Report(int argc, char** argv, const char* title) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") != 0) {
      std::fprintf(stderr, "%s: unknown option '%s'; --json is the only one\n", argv[0], argv[i]);
      std::exit(2);
    }
    json_ = true;
  }
  cudaDeviceProp device{};
  require(cudaGetDeviceProperties(&device, 0));
  if (json_) {
    std::printf("{\"bench\":\"%s\",\"device\":\"%s\",\"multiprocessors\":%d}\n", title, device.name,
                device.multiProcessorCount);
  } else {
    std::printf("%s on %s, %d multiprocessors\n%-56s %10s %9s %9s %7s\n", title, device.name,
                device.multiProcessorCount, "", "us", "GB/s", "TFLOP/s", "ceiling");
  }
}

void Report::add(const Line& line) const {
  const double gb_per_s = line.bytes / line.microseconds * 1e-3;
  const double tflop_per_s = line.flops / line.microseconds * 1e-6;
  const double percent =
      100 * std::max(gb_per_s / read_ceiling_gb_per_s, tflop_per_s / f16_ceiling_tflop_per_s);
  std::printf(json_ ? "{\"name\":\"%s\",\"us\":%.3f,\"gb_per_s\":%.1f,\"tflop_per_s\":%.1f,\"percent_of_"
                      "ceiling\":%.1f}\n"
                    : "%-56s %10.2f %9.1f %9.1f %6.1f%%\n",
              line.name.c_str(), line.microseconds, gb_per_s, tflop_per_s, percent);
}

}  // namespace ds4::bench
