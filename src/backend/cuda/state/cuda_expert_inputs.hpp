// Running sums of the inputs of routed experts in device memory.
#pragma once

#include "backend/backend.hpp"
#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/gemm/half_experts.hpp"
#include "model/shape.hpp"

namespace ds4::cuda {

class CudaExpertInputs final : public backend::ExpertInputs {
 public:
  /// Sums of zero. Throws CudaFailure.
  CudaExpertInputs(const model::ModelShape& shape, cudaStream_t stream);

  HalfExpertInputSums of_layer(size_t layer) const;
  /// Waits for the stream. Throws CudaFailure and std::bad_alloc.
  ExpertInputSums read(cudaStream_t stream) const;

 private:
  const model::ModelShape& shape_;
  DeviceBuffer<double> gate_up_, down_;      // [layers][E][d], [layers][E][F]
  DeviceBuffer<unsigned long long> tokens_;  // [layers][E]
};

}  // namespace ds4::cuda
