// Stands in for the CUDA backend in builds without CUDA, so that nothing else needs to know.
#include "backend/cuda/cuda_backend.hpp"

#include "base/error.hpp"

namespace ds4::cuda {

bool available(std::string* why) {
  if (why != nullptr) *why = "this build has no CUDA support";
  return false;
}

namespace {

Error not_built() {
  return fail(ErrorCode::unsupported,
              "this build has no CUDA support; \"cmake --preset cuda\" makes one that has");
}

}  // namespace

Result<MemoryPlan> plan_cuda_memory(const model::ModelShape&, const model::ModelWeights&,
                                    const model::MtpWeights*) {
  return not_built();
}

Result<std::unique_ptr<backend::Backend>> make_cuda_backend(const model::ModelShape&,
                                                            const model::ModelWeights&,
                                                            const model::MtpWeights*, const CudaOptions&) {
  return not_built();
}

}  // namespace ds4::cuda
