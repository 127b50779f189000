// A block of a session's state of Flash, 62 runs of rows in 449,824 bytes, between the host and the GPU:
// whole calls with their waiting, the kernel alone, and what the connection allows with one run in pinned
// memory.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/state/copy_spans.hpp"
#include "backend/cuda/state/staged_copies.hpp"
#include "cuda_timing.hpp"

namespace {

using namespace ds4::cuda;
using ds4::bench::Arena;
using ds4::bench::Report;
using ds4::bench::require;

constexpr size_t blocks = 128;  // more than L2 holds
constexpr size_t calls = 1280;
constexpr size_t row_bytes = 584, index_row_bytes_of_state = 68;

/// Where a block's rows lie: 21 layers with 32 rows and 32 index rows, 20 with one row.
std::vector<DeviceSpan> places_of_block(uint8_t* memory, size_t block) {
  std::vector<DeviceSpan> spans;
  const auto add = [&](size_t bytes) {
    spans.push_back({memory + block * bytes, bytes});
    memory += blocks * bytes;
  };
  for (int layer = 0; layer < 41; ++layer) {
    add(layer < 21 ? 32 * row_bytes : row_bytes);
    if (layer < 21) add(32 * index_row_bytes_of_state);
  }
  return spans;
}

constexpr size_t block_bytes = 21 * 32 * (row_bytes + index_row_bytes_of_state) + 20 * row_bytes;

/// Microseconds of a call, all of them one after the other.
double time_of(const std::function<void(size_t)>& call) {
  for (size_t i = 0; i < blocks; ++i) call(i);
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < calls; ++i) call(i % blocks);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / calls;
}

/// Staging memory that holds a block, with its description.
struct StagedBlock {
  PinnedBuffer<std::byte> bytes{2 * block_bytes / copy_line_bytes * copy_line_bytes, "benchmark"};
  PinnedBuffer<CopySpan> spans{256, "benchmark"};
  size_t count = 0;

  explicit StagedBlock(const std::vector<DeviceSpan>& places) {
    size_t filled = 0;
    for (const DeviceSpan& place : places) {
      for (size_t done = 0; done < place.bytes;) {
        const size_t offset = staging_offset(filled, place.device + done);
        const size_t size = std::min(place.bytes - done, copy_step_bytes - offset % copy_line_bytes);
        spans[count++] = {place.device + done, static_cast<uint32_t>(offset), static_cast<uint32_t>(size)};
        filled = offset + size;
        done += size;
      }
    }
  }
};

void bench_calls(const Report& report, const std::vector<std::vector<DeviceSpan>>& places) {
  StagedCopies copies;
  std::vector<std::byte> bytes(blocks * block_bytes);
  report.add({"block to the GPU",
              time_of([&](size_t i) { copies.to_device(places[i], bytes.data() + i * block_bytes); }),
              block_bytes, 0});
  report.add({"block to the host",
              time_of([&](size_t i) { copies.to_host(places[i], bytes.data() + i * block_bytes); }),
              block_bytes, 0});
}

void bench_kernel(const Report& report, const std::vector<DeviceSpan>& places, cudaStream_t stream) {
  const StagedBlock staged(places);
  const auto waiting = [&](cudaError_t status) {
    require(status);
    require(cudaStreamSynchronize(stream));
  };
  for (const bool to_device : {true, false}) {
    const std::string name = to_device ? "scatter" : "gather";
    const auto launch = [&](cudaStream_t s) {
      return to_device ? scatter_spans(staged.bytes.data(), staged.spans.data(), staged.count, s)
                       : gather_spans(staged.bytes.data(), staged.spans.data(), staged.count, s);
    };
    report.add({name + " kernel, back to back",
                ds4::bench::graph_microseconds(300, [&](int, cudaStream_t s) { return launch(s); }),
                block_bytes, 0});
    report.add({name + " kernel, waiting for each", time_of([&](size_t) { waiting(launch(stream)); }),
                block_bytes, 0});
    const auto run = [&] {
      uint8_t* const device = places.front().device;
      return to_device
                 ? cudaMemcpyAsync(device, staged.bytes.data(), block_bytes, cudaMemcpyHostToDevice, stream)
                 : cudaMemcpyAsync(staged.bytes.data(), device, block_bytes, cudaMemcpyDeviceToHost, stream);
    };
    report.add({to_device ? "one run of as many pinned bytes to the GPU, waiting for each"
                          : "one run of as many pinned bytes to the host, waiting for each",
                time_of([&](size_t) { waiting(run()); }), block_bytes, 0});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Report report(ds4::bench::read_options(argc, argv), "copies of blocks of a state, Flash");
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Arena arena;
  auto* memory = arena.take<uint8_t>(blocks * block_bytes);
  std::vector<std::vector<DeviceSpan>> places;
  for (size_t i = 0; i < blocks; ++i) places.push_back(places_of_block(memory, i));
  try {
    bench_calls(report, places);
    bench_kernel(report, places.front(), stream);
  } catch (const CudaFailure& failure) {
    std::fprintf(stderr, "%s\n", failure.error.message.c_str());
    return 1;
  }
  require(cudaStreamDestroy(stream));
  return 0;
}
