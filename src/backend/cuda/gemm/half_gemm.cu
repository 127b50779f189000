// Dense products of prefill: checks, the F16 form of the weights, then one launch for up to eight products.
// Layout: half_gemm.hpp; scratch holds the F16 planes of the jobs one after the other, each aligned to 256.
// Preconditions: half_gemm.hpp, checked here.
// Bytes: the weights' planes once and their F16 form twice (written, read), activations once per row tile.
// Why: with thousands of tokens a decoded weight is used thousands of times, so decoding costs 0.1 ms of
// the 1.7 ms of a Flash layer at 4096 tokens (H200) and leaves the product a plain F16 one, which tensor
// cores take straight from memory.
#include <array>

#include "backend/cuda/device/warpgroup.hpp"
#include "backend/cuda/gemm/half_gemm_tiles.cuh"
#include "backend/cuda/gemm/half_weights.hpp"

namespace ds4::cuda {
namespace {

using format::TensorType;

bool aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

uint32_t block_columns(TensorType type) {
  switch (type) {
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16:
    case TensorType::q8_0:
    case TensorType::mxfp4:
      return 32;
    case TensorType::q4_k:
    case TensorType::q2_k:
    case TensorType::iq2_xxs:
      return 256;
    default:
      return 0;
  }
}

bool is_valid(const HalfGemmJob& job) {
  const DeviceMatrix& w = job.w;
  const uint32_t block = block_columns(w.type);
  if (block == 0 || w.cols == 0 || w.cols % block != 0 || w.cols > job.x.stride) return false;
  if (job.x.stride % 32 != 0 || job.group_cols % 32 != 0) return false;
  if (job.rows_per_group != 0 && job.rows_per_group < w.rows) {
    const uint64_t last = (w.rows - 1) / job.rows_per_group;
    if (job.group_cols == 0 || last * job.group_cols + w.cols > job.x.stride) return false;
  }
  if ((job.out == nullptr) == (job.out_half == nullptr) || job.out_stride < w.rows) return false;
  if (job.x.high == nullptr || w.quants == nullptr) return false;
  return aligned(job.x.high) && aligned(job.x.low) && aligned(w.quants) && aligned(w.scales) &&
         aligned(w.extras);
}

/// Bytes of one F16 plane of a job's weights.
size_t plane_bytes(const DeviceMatrix& w) {
  return (size_t{w.rows} * w.cols * sizeof(__half) + 255) / 256 * 256;
}
size_t weight_planes(const HalfGemmJob& job) {
  return job.w.type == TensorType::f16 ? 0 : job.x.low == nullptr ? 1 : 2;
}

}  // namespace

size_t half_gemm_scratch_bytes(std::span<const HalfGemmJob> jobs) {
  size_t bytes = 0;
  for (const HalfGemmJob& job : jobs) bytes += weight_planes(job) * plane_bytes(job.w);
  return bytes;
}

cudaError_t half_gemm(std::span<const HalfGemmJob> jobs, int tokens, void* scratch, cudaStream_t stream,
                      PrefillKernel kernel) {
  if (tokens < 0) return cudaErrorInvalidValue;
  for (const HalfGemmJob& job : jobs) {
    if (job.w.rows != 0 && !is_valid(job)) return cudaErrorInvalidValue;
  }
  if (half_gemm_scratch_bytes(jobs) != 0 && (scratch == nullptr || !aligned(scratch))) {
    return cudaErrorInvalidValue;
  }
  if (tokens == 0) return cudaSuccess;
  static_assert(max_half_weights == max_half_products);
  uint8_t* free_scratch = static_cast<uint8_t*>(scratch);
  for (size_t next = 0; next < jobs.size();) {
    std::array<HalfProduct, max_half_products> products;
    std::array<HalfWeights, max_half_weights> weights;
    size_t count = 0, converted = 0;
    for (; next < jobs.size() && count < max_half_products; ++next) {
      const HalfGemmJob& job = jobs[next];
      if (job.w.rows == 0) continue;
      HalfProduct& product = products[count++];
      product = {job, reinterpret_cast<const __half*>(job.w.quants), nullptr};
      const size_t planes = weight_planes(job);
      if (planes == 0) continue;
      HalfWeights& w = weights[converted++];
      w = {job.w, reinterpret_cast<__half*>(free_scratch), nullptr};
      if (planes == 2) w.low = reinterpret_cast<__half*>(free_scratch + plane_bytes(job.w));
      free_scratch += planes * plane_bytes(job.w);
      product.w_high = w.high;
      product.w_low = w.low;
    }
    if (count == 0) break;
    cudaError_t status = half_weights({weights.data(), converted}, stream);
    if (status != cudaSuccess) return status;
    const std::span<const HalfProduct> batch(products.data(), count);
    const uint32_t token_count = static_cast<uint32_t>(tokens);
    status = kernel == PrefillKernel::best && has_warpgroup_products()
                 ? half_gemm_wgmma(batch, token_count, stream)
                 : half_gemm_mma(batch, token_count, stream);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace ds4::cuda
