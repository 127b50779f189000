#include "backend/cuda/state/cuda_expert_inputs.hpp"

namespace ds4::cuda {
namespace {

constexpr const char* name = "inputs of experts";

size_t all_experts(const model::ModelShape& shape) {
  return size_t{shape.layers} * shape.experts;
}

template <class T>
void clear(const DeviceBuffer<T>& buffer, cudaStream_t stream) {
  check(cudaMemsetAsync(buffer.data(), 0, buffer.bytes(), stream), name);
}

template <class T, class Host>
std::vector<Host> download(const DeviceBuffer<T>& buffer, cudaStream_t stream) {
  static_assert(sizeof(T) == sizeof(Host));
  std::vector<Host> values(buffer.size());
  check(cudaMemcpyAsync(values.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost, stream), name);
  return values;
}

}  // namespace

CudaExpertInputs::CudaExpertInputs(const model::ModelShape& shape, cudaStream_t stream)
    : shape_(shape),
      gate_up_(all_experts(shape) * shape.width, name),
      down_(all_experts(shape) * shape.expert_width, name),
      tokens_(all_experts(shape), name) {
  clear(gate_up_, stream);
  clear(down_, stream);
  clear(tokens_, stream);
  check(cudaStreamSynchronize(stream), name);
}

HalfExpertInputSums CudaExpertInputs::of_layer(size_t layer) const {
  const size_t first = layer * shape_.experts;
  return {gate_up_.data() + first * shape_.width, down_.data() + first * shape_.expert_width,
          tokens_.data() + first};
}

ExpertInputSums CudaExpertInputs::read(cudaStream_t stream) const {
  ExpertInputSums sums;
  sums.layers = shape_.layers;
  sums.experts = shape_.experts;
  sums.width = shape_.width;
  sums.expert_width = shape_.expert_width;
  sums.gate_up = download<double, double>(gate_up_, stream);
  sums.down = download<double, double>(down_, stream);
  sums.tokens = download<unsigned long long, uint64_t>(tokens_, stream);
  check(cudaStreamSynchronize(stream), name);
  return sums;
}

}  // namespace ds4::cuda
