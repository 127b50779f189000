// Which device the CUDA backend takes, and how a model's memory is laid out on it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "ds4/error.hpp"
#include "ds4/memory.hpp"
#include "model/shape.hpp"
#include "model/weights.hpp"

namespace ds4::cuda {

std::string device_name(const cudaDeviceProp& device);

/// What each token adds to a long sequence.
double state_bytes_per_token(const model::ModelShape& shape);

/// The first device, if its compute capability is 8.0 or newer.
Result<cudaDeviceProp> usable_device();

/// What the kernels ask of a shape beyond what every shape is.
Result<void> check_limits(const model::ModelShape& shape);

/// Weights, scratch, and an empty session.
uint64_t needed_bytes(const MemoryPlan& plan);

struct DevicePlan {
  MemoryPlan memory;
  uint32_t chunk_tokens = 0;  // of prefill
};

/// Chunks as long as fit beside the weights and a session. `mtp` may be null. Throws CudaFailure.
DevicePlan plan_for(const cudaDeviceProp& device, const model::ModelShape& shape,
                    const model::ModelWeights& weights, const model::MtpWeights* mtp);

}  // namespace ds4::cuda
