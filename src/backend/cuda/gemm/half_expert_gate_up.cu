// The gate and up products of experts in every format: kernel in half_expert_product.cuh.
#include "backend/cuda/gemm/half_expert_product.cuh"

namespace ds4::cuda {

cudaError_t half_expert_gate_up(const HalfExpertProduct& product, bool warpgroup,
                                const HalfExpertDevice& device, cudaStream_t stream) {
  return warpgroup ? half_expert::launch_type<true, true>(product, device, stream)
                   : half_expert::launch_type<false, true>(product, device, stream);
}

}  // namespace ds4::cuda
