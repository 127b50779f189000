#include "backend/cuda/device/read_bandwidth.hpp"

#include <algorithm>

#include "backend/cuda/device/cuda_error.hpp"
#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/device/stream.hpp"
#include "base/error.hpp"

namespace ds4::cuda {
namespace {

constexpr size_t step_bytes = read_step_words * sizeof(uint4);
constexpr size_t most_bytes = size_t{8} << 30, least_bytes = size_t{256} << 20;
constexpr int passes = 8;

}  // namespace

double measure_read_bandwidth(cudaStream_t stream) {
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "memory of the device");
  const size_t bytes = std::min(most_bytes, free_bytes / 2) / step_bytes * step_bytes;
  if (bytes < least_bytes) {
    throw CudaFailure{fail(ErrorCode::out_of_memory,
                           "measuring the memory of the GPU needs {} MiB free, {} MiB are", least_bytes >> 19,
                           free_bytes >> 20)};
  }
  const DeviceBuffer<uint4> buffer(bytes / sizeof(uint4), "buffer of the bandwidth measurement");
  const DeviceBuffer<uint32_t> sink(1, "buffer of the bandwidth measurement");
  check(cudaMemsetAsync(buffer.data(), 1, bytes, stream), "memset");
  const Event begin(EventTimes::kept), end(EventTimes::kept);
  float fastest_ms = 0;
  for (int pass = 0; pass < passes; ++pass) {
    check(cudaEventRecord(begin.get(), stream), "event");
    check(read_words(buffer.data(), buffer.size(), sink.data(), stream), "read_words");
    check(cudaEventRecord(end.get(), stream), "event");
    check(cudaEventSynchronize(end.get()), "read_words");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "event");
    fastest_ms = pass == 0 ? ms : std::min(fastest_ms, ms);
  }
  return static_cast<double>(bytes) / (static_cast<double>(fastest_ms) * 1e-3);
}

}  // namespace ds4::cuda
