#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

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
  require(cudaGetLastError());
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

Options read_options(int argc, char** argv, size_t most_arguments) {
  Options options;
  options.program = argv[0];
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") {
      options.json = true;
    } else if (argument.starts_with('-')) {
      std::fprintf(stderr, "%s: unknown option '%s'; --json is the only one\n", argv[0], argv[i]);
      std::exit(2);
    } else if (options.arguments.size() == most_arguments) {
      std::fprintf(stderr, "%s: unexpected argument '%s'\n", argv[0], argv[i]);
      std::exit(2);
    } else {
      options.arguments.push_back(argument);
    }
  }
  return options;
}

Report::Report(const Options& options, const char* title) : json_(options.json) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "%s: no CUDA device, so nothing is measured\n", options.program.c_str());
    std::exit(0);
  }
  cudaDeviceProp device{};
  require(cudaGetDeviceProperties(&device, 0));
  std::printf(json_ ? "{\"bench\":\"%s\",\"device\":\"%s\",\"multiprocessors\":%d}\n"
                    : "%s on %s, %d multiprocessors\n",
              title, device.name, device.multiProcessorCount);
  std::fflush(stdout);
}

void Report::add(const Line& line) const {
  // A difference of two times can be 0 or less, and JSON has no infinity.
  const bool positive = line.microseconds > 0;
  const double gb_per_s = positive ? line.bytes / line.microseconds * 1e-3 : 0;
  const double tflop_per_s = positive ? line.flops / line.microseconds * 1e-6 : 0;
  const double percent =
      100 * std::max(gb_per_s / read_ceiling_gb_per_s, tflop_per_s / f16_ceiling_tflop_per_s);
  std::printf(json_ ? "{\"name\":\"%s\",\"us\":%.3f,\"gb_per_s\":%.1f,\"tflop_per_s\":%.1f,\"percent_of_"
                      "ceiling\":%.1f}\n"
                    : "%-64s %10.2f us %8.1f GB/s %7.1f TFLOP/s %6.1f%% of the ceiling\n",
              line.name.c_str(), line.microseconds, gb_per_s, tflop_per_s, percent);
  std::fflush(stdout);  // earlier results survive a crash
}

std::string counted(uint64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace ds4::bench
