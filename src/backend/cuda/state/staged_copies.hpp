// Copies between pageable memory and many places of device memory, through two pinned buffers used in turn.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/device/stream.hpp"
#include "backend/cuda/state/copy_spans.hpp"

namespace ds4::cuda {

/// What lies together in device memory; null: no memory, zero bytes.
struct DeviceSpan {
  uint8_t* device = nullptr;
  size_t bytes = 0;
};

/// Takes 1 MiB of pinned memory, and none of the device. Has a stream of its own, whose kernels start before
/// those of passes that wait: they are short. Not thread-safe; calls wait for their copies. All throw
/// CudaFailure.
class StagedCopies {
 public:
  StagedCopies();

  /// The spans' bytes follow each other in `bytes`; those of spans without memory are skipped.
  void to_device(const std::vector<DeviceSpan>& spans, const std::byte* bytes);
  void to_host(const std::vector<DeviceSpan>& spans, std::byte* out);

  cudaStream_t stream() const { return stream_.get(); }

 private:
  struct Half {
    PinnedBuffer<std::byte> bytes;
    PinnedBuffer<CopySpan> spans;
    std::vector<std::byte*> targets;  // of a copy to the host: where the spans go
    size_t filled = 0, count = 0;     // bytes and spans in use
    Event done;

    Half();
    /// Room for what comes `begin` bytes after the start of the span, or for the first of it; none if full.
    std::span<std::byte> take(const DeviceSpan& span, size_t begin);
    void clear();
    void unload();
  };

  /// The other half, once the device is done with it.
  Half& next();
  void scatter(const Half& half);
  void gather(const Half& half);

  Stream stream_{StreamPriority::high};
  std::array<Half, 2> halves_;
  size_t turn_ = 0;
};

}  // namespace ds4::cuda
