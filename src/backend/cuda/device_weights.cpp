#include "backend/cuda/device_weights.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "backend/cuda/prefill/embed.hpp"
#include "backend/cuda/repack/repack.hpp"
#include "format/number_formats.hpp"
#include "format/tensor_type.hpp"

namespace ds4::cuda {
namespace {

using format::TensorType;
using model::Tensor;

constexpr size_t staging_bytes = size_t{32} << 20;
constexpr size_t alignment_bytes = 256;

bool is_plain(TensorType type) {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16;
}

size_t aligned(size_t bytes) {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

uint64_t matrix_bytes(const Tensor& tensor) {
  if (tensor.data == nullptr) return 0;
  if (is_plain(tensor.type)) return aligned(tensor.size_bytes);
  const size_t rows = tensor.dims[1] * tensor.dims[2];
  uint64_t bytes = 0;
  for (const Plane plane : {Plane::quants, Plane::scales, Plane::extras}) {
    bytes += aligned(plane_bytes(tensor.type, rows, tensor.dims[0], plane));
  }
  return bytes;
}

// Every tensor of a layer, matrices and vectors alike.
std::vector<const Tensor*> layer_tensors(const model::LayerWeights& w) {
  return {&w.hc_attn.fn,
          &w.hc_attn.scale,
          &w.hc_attn.base,
          &w.attn_norm,
          &w.q_a,
          &w.q_a_norm,
          &w.q_b,
          &w.kv,
          &w.kv_norm,
          &w.sinks,
          &w.output_a,
          &w.output_b,
          &w.compressor.ape,
          &w.compressor.kv,
          &w.compressor.gate,
          &w.compressor.norm,
          &w.index_q_b,
          &w.index_proj,
          &w.index_compressor.ape,
          &w.index_compressor.kv,
          &w.index_compressor.gate,
          &w.index_compressor.norm,
          &w.hc_ffn.fn,
          &w.hc_ffn.scale,
          &w.hc_ffn.base,
          &w.ffn_norm,
          &w.router,
          &w.router_bias,
          &w.router_table,
          &w.gate_experts,
          &w.up_experts,
          &w.down_experts,
          &w.gate_shared,
          &w.up_shared,
          &w.down_shared};
}

DeviceMatrix matrix_shape(const Tensor& tensor) {
  DeviceMatrix result;
  if (tensor.data == nullptr) return result;
  result.type = tensor.type;
  result.rows = static_cast<uint32_t>(tensor.dims[1] * tensor.dims[2]);
  result.cols = static_cast<uint32_t>(tensor.dims[0]);
  return result;
}

// Types and sizes only.
struct LayerShapes {
  DeviceMatrix matrix(const Tensor& tensor) { return matrix_shape(tensor); }
  const float* vector(const Tensor&) { return nullptr; }
  const int32_t* table(const Tensor&) { return nullptr; }
  DeviceMixer mixer(const model::HyperConnectionWeights& weights) {
    return {matrix_shape(weights.fn), nullptr, nullptr};
  }
  DeviceCompressor compressor(const model::CompressorWeights& weights) {
    return {matrix_shape(weights.kv), matrix_shape(weights.gate), nullptr, nullptr};
  }
};

// `Source` makes the parts of a layer from tensors.
template <class Source>
DeviceLayer make_layer(Source& up, const model::LayerWeights& w) {
  DeviceLayer layer;
  layer.ratio = w.ratio;
  layer.hc_attn = up.mixer(w.hc_attn);
  layer.hc_ffn = up.mixer(w.hc_ffn);
  layer.attn_norm = up.vector(w.attn_norm);
  layer.q_a_norm = up.vector(w.q_a_norm);
  layer.kv_norm = up.vector(w.kv_norm);
  layer.sinks = up.vector(w.sinks);
  layer.ffn_norm = up.vector(w.ffn_norm);
  layer.q_a = up.matrix(w.q_a);
  layer.q_b = up.matrix(w.q_b);
  layer.kv = up.matrix(w.kv);
  layer.output_a = up.matrix(w.output_a);
  layer.output_b = up.matrix(w.output_b);
  if (w.ratio != 0) layer.compressor = up.compressor(w.compressor);
  if (w.ratio == model::csa_ratio) {
    layer.index_compressor = up.compressor(w.index_compressor);
    layer.index_q_b = up.matrix(w.index_q_b);
    layer.index_proj = up.matrix(w.index_proj);
  }
  layer.router = up.matrix(w.router);
  layer.router_bias = up.vector(w.router_bias);
  layer.router_table = up.table(w.router_table);
  layer.gate_experts = up.matrix(w.gate_experts);
  layer.up_experts = up.matrix(w.up_experts);
  layer.down_experts = up.matrix(w.down_experts);
  layer.gate_shared = up.matrix(w.gate_shared);
  layer.up_shared = up.matrix(w.up_shared);
  layer.down_shared = up.matrix(w.down_shared);
  return layer;
}

}  // namespace

uint64_t device_tensor_bytes(const Tensor& tensor, model::TensorRole role) {
  switch (role) {
    case model::TensorRole::embedding:
      return is_embedding_type(tensor.type) ? matrix_bytes(tensor)
                                            : aligned(tensor.elements() * sizeof(float));
    case model::TensorRole::vector:
      return aligned(tensor.elements() * sizeof(float));
    case model::TensorRole::table:
      return aligned(tensor.size_bytes);
    default:
      return matrix_bytes(tensor);
  }
}

std::vector<DeviceLayer> device_layer_shapes(const model::ModelWeights& weights) {
  LayerShapes shapes;
  std::vector<DeviceLayer> layers;
  layers.reserve(weights.layers.size());
  for (const model::LayerWeights& w : weights.layers) layers.push_back(make_layer(shapes, w));
  return layers;
}

// Streams tensors through two pinned buffers: while one is copied and repacked, the other is filled from the
// file.
class DeviceWeights::Uploader {
 public:
  Uploader(std::vector<DeviceBuffer<uint8_t>>& memory, cudaStream_t stream, uint64_t total,
           const std::function<void(uint64_t, uint64_t)>& progress)
      : memory_(memory),
        stream_(stream),
        total_(total),
        progress_(progress),
        host_{{{staging_bytes, "staging memory"}, {staging_bytes, "staging memory"}}},
        device_{{{staging_bytes, "staging memory"}, {staging_bytes, "staging memory"}}} {
    for (cudaEvent_t& event : free_) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
  ~Uploader() {
    cudaStreamSynchronize(stream_);
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  DeviceMatrix matrix(const Tensor& tensor) {
    DeviceMatrix result = matrix_shape(tensor);
    if (tensor.data == nullptr) return result;
    if (is_plain(tensor.type)) {
      uint8_t* out = allocate(tensor.size_bytes, tensor);
      pieces(tensor, 1, [&](const uint8_t* staged, size_t offset, size_t count) {
        check(cudaMemcpyAsync(out + offset, staged, count, cudaMemcpyDeviceToDevice, stream_), "weight copy");
      });
      result.quants = out;
      return result;
    }
    const auto plane = [&](Plane which) {
      const size_t bytes = plane_bytes(tensor.type, result.rows, result.cols, which);
      return bytes == 0 ? nullptr : allocate(bytes, tensor);
    };
    result.quants = plane(Plane::quants);
    result.scales = plane(Plane::scales);
    result.extras = plane(Plane::extras);
    const uint32_t block = format::type_traits(tensor.type)->block_bytes;
    pieces(tensor, block, [&](const uint8_t* staged, size_t offset, size_t count) {
      check(repack(tensor.type, staged, offset / block, count / block, result, stream_), "repack");
    });
    return result;
  }

  const float* vector(const Tensor& tensor) {
    if (tensor.data == nullptr) return nullptr;
    std::vector<float> values(tensor.elements());
    const uint64_t row_bytes = format::row_bytes(tensor.type, tensor.dims[0]);
    for (size_t i = 0; i < values.size() / tensor.dims[0]; ++i) {
      format::decode_row(tensor.type, tensor.data + i * row_bytes, tensor.dims[0],
                         values.data() + i * tensor.dims[0]);
    }
    uint8_t* out = allocate(values.size() * sizeof(float), tensor);
    check(cudaMemcpyAsync(out, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice, stream_),
          "vector copy");
    check(cudaStreamSynchronize(stream_), "vector copy");
    advance(tensor.size_bytes);
    return reinterpret_cast<const float*>(out);
  }

  DeviceMixer mixer(const model::HyperConnectionWeights& weights) {
    return {matrix(weights.fn), vector(weights.scale), vector(weights.base)};
  }
  DeviceCompressor compressor(const model::CompressorWeights& weights) {
    return {matrix(weights.kv), matrix(weights.gate), vector(weights.ape), vector(weights.norm)};
  }
  const int32_t* table(const Tensor& tensor) {
    return reinterpret_cast<const int32_t*>(tensor.data == nullptr ? nullptr : plain_bytes(tensor));
  }
  // As it is, or decoded where embed_tokens() does not know the type.
  DeviceMatrix embedding(const Tensor& tensor) {
    if (is_embedding_type(tensor.type)) return matrix(tensor);
    const size_t cols = tensor.dims[0], rows = tensor.dims[1];
    const uint64_t row_bytes = format::row_bytes(tensor.type, cols);
    DeviceMatrix result{TensorType::f32, static_cast<uint32_t>(rows), static_cast<uint32_t>(cols)};
    auto* out = reinterpret_cast<float*>(allocate(rows * cols * sizeof(float), tensor));
    constexpr size_t rows_at_once = 256;
    std::vector<float> values(rows_at_once * cols);
    for (size_t first = 0; first < rows; first += rows_at_once) {
      const size_t count = std::min(rows_at_once, rows - first);
      for (size_t i = 0; i < count; ++i) {
        format::decode_row(tensor.type, tensor.data + (first + i) * row_bytes, cols,
                           values.data() + i * cols);
      }
      check(cudaMemcpyAsync(out + first * cols, values.data(), count * cols * sizeof(float),
                            cudaMemcpyHostToDevice, stream_),
            "embedding copy");
      check(cudaStreamSynchronize(stream_), "embedding copy");  // `values` is filled again
      advance(count * row_bytes);
    }
    result.quants = reinterpret_cast<const uint8_t*>(out);
    return result;
  }

 private:
  const uint8_t* plain_bytes(const Tensor& tensor) {
    uint8_t* out = allocate(tensor.size_bytes, tensor);
    pieces(tensor, 1, [&](const uint8_t* staged, size_t offset, size_t count) {
      check(cudaMemcpyAsync(out + offset, staged, count, cudaMemcpyDeviceToDevice, stream_), "weight copy");
    });
    return out;
  }

  uint8_t* allocate(size_t bytes, const Tensor& tensor) {
    memory_.emplace_back(aligned(bytes), std::string(tensor.name).c_str());
    return memory_.back().data();
  }

  template <class Consume>
  void pieces(const Tensor& tensor, size_t unit, const Consume& consume) {
    const size_t piece = staging_bytes / unit * unit;
    for (size_t offset = 0; offset < tensor.size_bytes; offset += piece) {
      const size_t count = std::min<size_t>(piece, tensor.size_bytes - offset);
      check(cudaEventSynchronize(free_[turn_]), "weight staging");
      std::memcpy(host_[turn_].data(), tensor.data + offset, count);
      check(
          cudaMemcpyAsync(device_[turn_].data(), host_[turn_].data(), count, cudaMemcpyHostToDevice, stream_),
          "weight upload");
      consume(device_[turn_].data(), offset, count);
      check(cudaEventRecord(free_[turn_], stream_), "weight staging");
      turn_ = 1 - turn_;
      advance(count);
    }
  }

  void advance(uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(std::min(done_, total_), total_);
  }

  std::vector<DeviceBuffer<uint8_t>>& memory_;
  cudaStream_t stream_;
  uint64_t total_, done_ = 0;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  std::array<PinnedBuffer<uint8_t>, 2> host_;
  std::array<DeviceBuffer<uint8_t>, 2> device_;
  std::array<cudaEvent_t, 2> free_{};
  size_t turn_ = 0;
};

DeviceWeights::DeviceWeights(const model::ModelWeights& weights, cudaStream_t stream,
                             const std::function<void(uint64_t, uint64_t)>& progress) {
  uint64_t total = weights.token_embedding.size_bytes + weights.output.size_bytes;
  for (const model::LayerWeights& layer : weights.layers) {
    for (const Tensor* tensor : layer_tensors(layer)) total += tensor->size_bytes;
  }
  Uploader up(memory_, stream, total, progress);
  output = up.matrix(weights.output);
  output_norm = up.vector(weights.output_norm);
  hc_head = up.mixer(weights.hc_head);
  embedding = up.embedding(weights.token_embedding);
  for (const model::LayerWeights& w : weights.layers) {
    layers.push_back(make_layer(up, w));
  }
}

}  // namespace ds4::cuda
