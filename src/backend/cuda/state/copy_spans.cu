// What:   moves rows of a state between their places in device memory and a piece of pinned host memory.
// Layout: a block for every span; units of 16 bytes, counted from the line of 128 that the span begins in. A
//         unit that belongs to the span in part is moved whole on the host's side, in bytes on the device's.
// Needs:  device address and staging offset equal modulo 128; no line of staging memory in two spans.
// Bytes:  the spans', once over PCIe and once in device memory; 16 for the description of each.
// Why:    a copy command for each run of rows costs 3 to 5 us, and a block of Flash is 62 runs in 450 KB. The
//         loads of a step are issued before its first store, since each takes a microsecond or more. Host
//         memory is read in place: no buffer on the device, no copy engine that passes use as well.
#include "backend/cuda/state/copy_spans.hpp"

namespace ds4::cuda {
namespace {

constexpr int threads = 256;
constexpr int unit_bytes = 16;
constexpr int loads = copy_step_bytes / (threads * unit_bytes);  // in flight for each thread

union Unit {
  uint4 word;
  uint8_t byte[unit_bytes];
};

template <bool to_device>
__global__ void __launch_bounds__(threads) copy_kernel(uint8_t* staging, const CopySpan* spans) {
  const CopySpan span = spans[blockIdx.x];
  const uint32_t begin = span.offset % copy_line_bytes, end = begin + span.bytes;
  uint8_t* const device = span.device - begin;
  uint8_t* const host = staging + (span.offset - begin);
  for (uint32_t first = 0; first < end; first += copy_step_bytes) {
    Unit units[loads];
#pragma unroll
    for (int j = 0; j < loads; ++j) {
      const uint32_t at = first + (j * threads + threadIdx.x) * unit_bytes;
      if (at + unit_bytes <= begin || at >= end) continue;
      if (to_device) {
        units[j].word = *reinterpret_cast<const uint4*>(host + at);
      } else if (at >= begin && at + unit_bytes <= end) {
        units[j].word = *reinterpret_cast<const uint4*>(device + at);
      } else {
#pragma unroll
        for (int k = 0; k < unit_bytes; ++k) {
          units[j].byte[k] = at + k >= begin && at + k < end ? device[at + k] : uint8_t{0};
        }
      }
    }
#pragma unroll
    for (int j = 0; j < loads; ++j) {
      const uint32_t at = first + (j * threads + threadIdx.x) * unit_bytes;
      if (at + unit_bytes <= begin || at >= end) continue;
      if (!to_device) {
        *reinterpret_cast<uint4*>(host + at) = units[j].word;
      } else if (at >= begin && at + unit_bytes <= end) {
        *reinterpret_cast<uint4*>(device + at) = units[j].word;
      } else {
#pragma unroll
        for (int k = 0; k < unit_bytes; ++k) {
          if (at + k >= begin && at + k < end) device[at + k] = units[j].byte[k];
        }
      }
    }
  }
}

template <bool to_device>
cudaError_t copy(uint8_t* staging, const CopySpan* spans, size_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  copy_kernel<to_device><<<static_cast<unsigned>(count), threads, 0, stream>>>(staging, spans);
  return cudaGetLastError();
}

}  // namespace

cudaError_t scatter_spans(const std::byte* staging, const CopySpan* spans, size_t count,
                          cudaStream_t stream) {
  // The kernel of this direction only reads it.
  return copy<true>(reinterpret_cast<uint8_t*>(const_cast<std::byte*>(staging)), spans, count, stream);
}

cudaError_t gather_spans(std::byte* staging, const CopySpan* spans, size_t count, cudaStream_t stream) {
  return copy<false>(reinterpret_cast<uint8_t*>(staging), spans, count, stream);
}

}  // namespace ds4::cuda
