// Copies between pinned host memory and many places of device memory, in one launch.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace ds4::cuda {

/// Bytes that lie together in device memory and at an offset of staging memory.
struct alignas(16) CopySpan {
  uint8_t* device = nullptr;
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

/// Device address and offset are equal modulo this, so that both sides allow the same wide accesses. Spans
/// share no such line of staging memory.
inline constexpr size_t copy_line_bytes = 128;
/// A block copies so much at once. Longer spans are right as well, but are copied in several turns.
inline constexpr size_t copy_step_bytes = 16384;

/// Where `device` is to be staged, if staging memory is filled up to `filled`.
inline size_t staging_offset(size_t filled, const uint8_t* device) {
  return (filled + copy_line_bytes - 1) / copy_line_bytes * copy_line_bytes +
         reinterpret_cast<uintptr_t>(device) % copy_line_bytes;
}

/// From staging memory to the device, and back; what lies between the spans in staging memory is read and
/// written too. `staging` and `spans` are memory of cudaMallocHost that the caller leaves alone until the
/// stream is done.
/// Preconditions: `staging` begins at a multiple of copy_line_bytes and has whole lines; offsets are of
/// staging_offset().
cudaError_t scatter_spans(const std::byte* staging, const CopySpan* spans, size_t count, cudaStream_t stream);
cudaError_t gather_spans(std::byte* staging, const CopySpan* spans, size_t count, cudaStream_t stream);

}  // namespace ds4::cuda
