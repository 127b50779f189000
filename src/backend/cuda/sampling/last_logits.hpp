// The logits after the last token of every sequence, kept in device memory until somebody chooses from them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/state/page_pool.hpp"
#include "ds4/sampling.hpp"
#include "sampling/logit_summary.hpp"

namespace ds4::cuda {

/// Of one sequence or image. Copies share the values, which never change.
struct KeptLogits {
  std::shared_ptr<uint8_t> values;  // float [V] in device memory; null before the first token
  size_t bytes = 0;
  sampling::LogitSummary summary;

  const float* data() const { return reinterpret_cast<const float*>(values.get()); }
};

/// Of a backend. Not thread-safe, but KeptLogits may be dropped in any thread.
class LastLogits {
 public:
  /// Throws CudaFailure.
  LastLogits(uint32_t vocabulary, cudaStream_t stream);

  /// Device memory taken at first; it grows when more rows are kept.
  static uint64_t initial_bytes(uint32_t vocabulary);

  /// Room for the next `count` rows to be kept. Throws CudaFailure.
  void reserve(size_t count) { pool_->reserve(count); }
  /// Row r of `logits` (device memory, [kept.size()][V], at most max_rows) becomes *kept[r]. Waits for the
  /// stream.
  void keep(const float* logits, std::span<KeptLogits* const> kept);
  /// The same of one row of host memory [V].
  void keep(std::span<const float> logits, KeptLogits& kept);
  /// To host memory [V]. Waits.
  void fetch(const KeptLogits& kept, float* out) const;
  /// A token drawn with `uniform`, as sampling::draw() does; the parameters must not be greedy. Waits.
  Token draw(const KeptLogits& kept, const SamplingParams& params, float uniform);

 private:
  const uint32_t vocabulary_;
  cudaStream_t stream_;
  std::shared_ptr<PagePool> pool_;
  DeviceBuffer<uint8_t> scratch_, draw_scratch_;
  PinnedBuffer<sampling::LogitSummary> summaries_;
  PinnedBuffer<Token> drawn_;
};

}  // namespace ds4::cuda
