// The gate and up products of experts in every format: kernel in half_expert_product.cuh.
#include "backend/cuda/gemm/half_expert_product.cuh"

namespace ds4::cuda {

cudaError_t half_expert_gate_up(const HalfExpertProduct& product, bool warpgroup,
                                const HalfExpertDevice& device, cudaStream_t stream) {
  return warpgroup ? half_expert::launch_type<true, true>(product, device, stream)
                   : half_expert::launch_type<false, true>(product, device, stream);
}

bool has_half_expert_warpgroup() {
  static const bool has = [] {
    int device = 0, major = 0, minor = 0;
    cudaFuncAttributes attributes = {};
    if (cudaGetDevice(&device) != cudaSuccess) return false;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (major != 9 || minor != 0) return false;
    const auto kernel = half_expert::product_kernel<true, TensorType::q8_0, true>;
    return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.sharedSizeBytes != 0;
  }();
  return has;
}

}  // namespace ds4::cuda
