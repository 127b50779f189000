#include "backend/cuda/hc/finish_mix.cuh"
#include "finish_mix_kernel.hpp"

namespace ds4::cuda {
namespace {

__global__ void finish_kernel(MixFinish mix) {
  __shared__ float parts[32][32];
  finish_mix(mix, static_cast<int>(blockIdx.x), parts);
}

}  // namespace

void launch_finish_mix(const MixFinish& mix, int rows, int threads) {
  finish_kernel<<<rows, threads>>>(mix);
}

}  // namespace ds4::cuda
