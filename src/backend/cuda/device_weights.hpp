// The model's tensors in device memory: matrices as aligned planes, small vectors as F32.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/device_types.hpp"
#include "backend/cuda/hc/hyper_connection.hpp"
#include "model/tensor_list.hpp"
#include "model/weights.hpp"

namespace ds4::cuda {

struct DeviceCompressor {
  DeviceMatrix kv, gate;        // [width][d]
  const float* ape = nullptr;   // [ratio][width]
  const float* norm = nullptr;  // [dim]
};

struct DeviceLayer {
  uint32_t ratio = 0;
  DeviceMixer hc_attn, hc_ffn;
  const float* attn_norm = nullptr;
  const float* q_a_norm = nullptr;
  const float* kv_norm = nullptr;
  const float* sinks = nullptr;
  const float* ffn_norm = nullptr;
  DeviceMatrix q_a, q_b, kv, output_a, output_b;
  DeviceCompressor compressor, index_compressor;
  DeviceMatrix index_q_b, index_proj;
  DeviceMatrix router;
  const float* router_bias = nullptr;
  const int32_t* router_table = nullptr;
  DeviceMatrix gate_experts, up_experts, down_experts;  // [E * F][d], [E * F][d], [E * d][F]
  DeviceMatrix gate_shared, up_shared, down_shared;
};

/// The MTP block.
struct DeviceDrafter {
  const float* embedding_norm = nullptr;
  const float* hidden_norm = nullptr;
  const float* norm = nullptr;
  DeviceMatrix embedding_proj, hidden_proj;  // [d][d]
  DeviceLayer layer;
  DeviceMixer hc_head;
};

/// Bytes of device memory that a tensor takes, without loading it.
uint64_t device_tensor_bytes(const model::Tensor& tensor, model::TensorRole role);

/// The layers of a model without device memory: types and sizes of their matrices.
std::vector<DeviceLayer> device_layer_shapes(const model::ModelWeights& weights);

class DeviceWeights {
 public:
  /// No layers; for programs that fill the members themselves.
  DeviceWeights() = default;
  /// Copies and repacks every tensor; `mtp` may be null. `progress` gets (done, total) bytes. Throws
  /// CudaFailure.
  DeviceWeights(const model::ModelWeights& weights, const model::MtpWeights* mtp, cudaStream_t stream,
                const std::function<void(uint64_t, uint64_t)>& progress);

  DeviceMatrix embedding;  // [V][d], of a type that embed_tokens() reads
  std::vector<DeviceLayer> layers;
  DeviceMatrix output;
  const float* output_norm = nullptr;
  DeviceMixer hc_head;
  std::optional<DeviceDrafter> drafter;

 private:
  class Uploader;
  std::vector<DeviceBuffer<uint8_t>> memory_;
};

}  // namespace ds4::cuda
