// The CUDA backend behind the seam of backend/backend.hpp. Exists in every build: without CUDA compiled in
// (src/backend/none) making one is an error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "ds4/error.hpp"
#include "ds4/memory.hpp"
#include "model/weights.hpp"

namespace ds4::cuda {

struct CudaOptions {
  std::vector<float> directions;  // [layers][d] for steering; empty: none
  /// Called while weights go to the device: bytes done, bytes in all.
  std::function<void(uint64_t, uint64_t)> on_load_progress;
};

/// True if this build has the backend and a device that can run it; otherwise `why` gets one sentence.
bool available(std::string* why);

/// What make_cuda_backend() would take. Errors: unsupported.
Result<MemoryPlan> plan_cuda_memory(const model::ModelShape& shape, const model::ModelWeights& weights,
                                    const model::MtpWeights* mtp);

/// Loads the weights. `mtp` may be null. Errors: unsupported (no CUDA in this build, no usable device),
/// out_of_memory with the numbers.
Result<std::unique_ptr<backend::Backend>> make_cuda_backend(const model::ModelShape& shape,
                                                            const model::ModelWeights& weights,
                                                            const model::MtpWeights* mtp,
                                                            const CudaOptions& options);

}  // namespace ds4::cuda
