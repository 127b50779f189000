#include "backend/cuda/device_plan.hpp"

#include <algorithm>
#include <vector>

#include "backend/cuda/device_types.hpp"
#include "backend/cuda/device_weights.hpp"
#include "backend/cuda/drafter/drafter.hpp"
#include "backend/cuda/hc/hyper_connection.hpp"
#include "backend/cuda/pass.hpp"
#include "backend/cuda/prefill/prefill.hpp"
#include "backend/cuda/sampling/last_logits.hpp"
#include "backend/cuda/state/cuda_sequence.hpp"
#include "base/error.hpp"
#include "model/weight_groups.hpp"

namespace ds4::cuda {
namespace {

constexpr int oldest_major = 8;  // sm_80

}  // namespace

std::string device_name(const cudaDeviceProp& device) {
  return fmt::format("cuda ({}, {} GiB)", device.name, device.totalGlobalMem >> 30);
}

double state_bytes_per_token(const model::ModelShape& shape) {
  double bytes = 0;
  for (const uint32_t ratio : shape.ratios) {
    if (ratio == 0) continue;
    bytes += static_cast<double>(attention_row_bytes) / ratio;
    if (ratio == model::csa_ratio) bytes += static_cast<double>(index_row_bytes) / ratio;
  }
  return bytes;
}

Result<cudaDeviceProp> usable_device() {
  constexpr int index = 0;
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
    return fail(ErrorCode::unsupported, "no CUDA device: {}",
                status == cudaSuccess ? "none is installed" : cudaGetErrorString(status));
  }
  cudaDeviceProp properties;
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, index); status != cudaSuccess) {
    return fail(ErrorCode::unsupported, "CUDA device {}: {}", index, cudaGetErrorString(status));
  }
  if (properties.major < oldest_major) {
    return fail(ErrorCode::unsupported,
                "CUDA device {} ({}) has compute capability {}.{}; 8.0 or newer is needed", index,
                properties.name, properties.major, properties.minor);
  }
  return properties;
}

Result<void> check_limits(const model::ModelShape& shape) {
  const struct {
    const char* name;
    uint32_t value, max, multiple;
  } limits[] = {{"embedding_length", shape.width, 8192, mix_slice_columns},
                {"expert_count", shape.experts, 1024, 1},
                {"expert_used_count", shape.experts_used, 32, 1},
                {"attention.indexer.head_count", shape.index_heads, 160, 1}};
  for (const auto& limit : limits) {
    if (limit.value <= limit.max && limit.value % limit.multiple == 0) continue;
    return fail(ErrorCode::unsupported, "CUDA: {} is {}, but must be a multiple of {} and at most {}",
                limit.name, limit.value, limit.multiple, limit.max);
  }
  return {};
}

uint64_t needed_bytes(const MemoryPlan& plan) {
  return plan.weight_bytes() + plan.scratch_bytes + plan.session_total_bytes(0);
}

DevicePlan plan_for(const cudaDeviceProp& device, const model::ModelShape& shape,
                    const model::ModelWeights& weights, const model::MtpWeights* mtp) {
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "memory of the device");
  MemoryPlan plan;
  plan.device = device_name(device);
  plan.available_bytes = free_bytes;
  plan.weights = model::group_weights(shape, weights, device_tensor_bytes);
  if (mtp != nullptr) plan.weights.push_back({"drafter", model::mtp_bytes(shape, *mtp, device_tensor_bytes)});
  const ArenaLayout layout(shape, mtp != nullptr);
  plan.session_bytes = CudaSequence::fixed_bytes(shape, layout);
  plan.bytes_per_token = state_bytes_per_token(shape);
  const std::vector<DeviceLayer> layers = device_layer_shapes(weights);
  uint32_t chunk = max_prefill_tokens;
  while (true) {
    plan.scratch_bytes = Pass::scratch_bytes(shape) + LastLogits::initial_bytes(shape.vocabulary) +
                         layout.bytes + Prefill::scratch_bytes(shape, layers, chunk) +
                         (mtp != nullptr ? Drafter::scratch_bytes(shape) : 0);
    if (chunk == fewest_prefill_tokens || needed_bytes(plan) <= plan.available_bytes) return {plan, chunk};
    chunk = std::max(chunk / 2, fewest_prefill_tokens);
  }
}

}  // namespace ds4::cuda
