#include "model/weights.hpp"

#include <fmt/ranges.h>

#include <cstring>

#include "base/error.hpp"
#include "format/imatrix.hpp"
#include "model/tensor_list.hpp"
#include "model/tensor_names.hpp"

namespace ds4::model {
namespace {

using format::GgufFile;
using format::TensorType;

bool is_small_float(TensorType type) {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16;
}

// nullptr if a tensor of this role may have the type, else what it should have been.
const char* wrong_type(TensorRole role, TensorType type) {
  switch (role) {
    case TensorRole::table:
      return type == TensorType::i32 ? nullptr : "I32";
    case TensorRole::vector:
      return is_small_float(type) ? nullptr : "F32, F16 or BF16";
    default:
      return format::is_matrix_type(type) ? nullptr
                                          : "a type this engine computes with "
                                            "(F32, F16, BF16, Q8_0, Q4_K, Q2_K, IQ2_XXS, MXFP4)";
  }
}

// Dims without trailing ones, as people write them.
std::string dims_text(const Tensor& tensor) {
  size_t count = tensor.dims.size();
  while (count > 1 && tensor.dims[count - 1] == 1) --count;
  return fmt::format("[{}]", fmt::join(tensor.dims.begin(), tensor.dims.begin() + count, ", "));
}

bool same_dims(const Tensor& tensor, const std::vector<uint64_t>& dims) {
  for (size_t i = 0; i < tensor.dims.size(); ++i) {
    if (tensor.dims[i] != (i < dims.size() ? dims[i] : 1)) return false;
  }
  return true;
}

Result<void> check_router_table(const GgufFile& file, const Tensor& table, uint32_t experts) {
  for (uint64_t i = 0; i < table.elements(); ++i) {
    int32_t expert = 0;
    std::memcpy(&expert, table.data + i * sizeof expert, sizeof expert);
    if (expert < 0 || static_cast<uint32_t>(expert) >= experts)
      return fail(ErrorCode::format, "{}: tensor {} names expert {} for token {}, but there are {} experts",
                  file.path(), table.name, expert, i / table.dims[0], experts);
  }
  return {};
}

Result<void> bind(const GgufFile& file, const ModelShape& shape, const TensorSlot& slot) {
  DS4_ASSIGN(const Tensor* tensor, find_tensor(file, slot.name));
  if (!tensor) return fail(ErrorCode::format, "{}: tensor {} is missing", file.path(), slot.name);
  if (!same_dims(*tensor, slot.dims))
    return fail(ErrorCode::format, "{}: tensor {} has dims {}, expected [{}]", file.path(), tensor->name,
                dims_text(*tensor), fmt::join(slot.dims, ", "));
  if (const char* expected = wrong_type(slot.role, tensor->type))
    return fail(ErrorCode::unsupported, "{}: tensor {} has type {}, expected {}", file.path(), tensor->name,
                format::type_name(tensor->type), expected);
  if (slot.role == TensorRole::table) DS4_TRY(check_router_table(file, *tensor, shape.experts));
  *slot.tensor = *tensor;
  return {};
}

// The kernels decode gate and up rows side by side.
Result<void> check_expert_types(const GgufFile& file, const LayerWeights& layer) {
  if (layer.gate_experts.type == layer.up_experts.type) return {};
  return fail(ErrorCode::unsupported, "{}: tensors {} and {} must have one type, but have {} and {}",
              file.path(), layer.gate_experts.name, layer.up_experts.name,
              format::type_name(layer.gate_experts.type), format::type_name(layer.up_experts.type));
}

}  // namespace

Result<ModelWeights> bind_weights(const GgufFile& file, const ModelShape& shape) {
  DS4_TRY(check_shape(shape));
  ModelWeights weights;
  for (const TensorSlot& slot : list_model_tensors(shape, weights)) DS4_TRY(bind(file, shape, slot));
  for (const LayerWeights& layer : weights.layers) DS4_TRY(check_expert_types(file, layer));
  return weights;
}

bool is_weight(const Tensor& tensor) {
  return !tensor.name.starts_with(format::imatrix_tensor_prefix);
}

bool has_mtp(const GgufFile& file) {
  for (const Tensor& tensor : file.tensors()) {
    if (tensor.name.starts_with("mtp.0.")) return true;
  }
  return false;
}

Result<MtpWeights> bind_mtp(const GgufFile& file, const ModelShape& shape) {
  DS4_TRY(check_shape(shape));
  MtpWeights weights;
  for (const TensorSlot& slot : list_mtp_tensors(shape, weights)) DS4_TRY(bind(file, shape, slot));
  DS4_TRY(check_expert_types(file, weights.layer));
  return weights;
}

}  // namespace ds4::model
