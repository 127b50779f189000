#include "drafter_source.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "model/tensor_names.hpp"

namespace ds4::quantize {
namespace {

using format::GgufFile;
using format::GgufTensor;

/// Dims of a tensor of the block, each in 32 bits. bind_mtp() checks them against each other.
Result<std::array<uint32_t, 4>> dims_of(const GgufFile& file, std::string_view name) {
  const std::string full = "mtp.0." + std::string(name);
  DS4_ASSIGN(const GgufTensor* tensor, model::find_tensor(file, full));
  if (!tensor) return fail(ErrorCode::format, "{}: tensor {} is missing", file.path(), full);
  std::array<uint32_t, 4> dims{};
  for (size_t i = 0; i < dims.size(); ++i) {
    if (tensor->dims[i] > std::numeric_limits<uint32_t>::max())
      return fail(ErrorCode::unsupported, "{}: tensor {} has a dimension of {}", file.path(), full,
                  tensor->dims[i]);
    dims[i] = static_cast<uint32_t>(tensor->dims[i]);
  }
  return dims;
}

}  // namespace

Result<bool> is_drafter_file(const GgufFile& file) {
  const auto& tensors = file.tensors();
  const auto begins = [&](std::string_view prefix) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const GgufTensor& tensor) { return tensor.name.starts_with(prefix); });
  };
  if (!begins("mtp.") || file.find_tensor("token_embd.weight")) return false;
  if (begins("mtp.1.") || begins("mtp.0.main_proj."))
    return fail(ErrorCode::unsupported,
                "{}: this is a DSpark drafter of several stages; a drafter with one MTP block is expected",
                file.path());
  return true;
}

Result<model::ModelShape> read_drafter_shape(const GgufFile& file) {
  DS4_ASSIGN(const auto norm, dims_of(file, "enorm.weight"));
  DS4_ASSIGN(const auto query, dims_of(file, "attn_q_b.weight"));
  DS4_ASSIGN(const auto output_a, dims_of(file, "attn_output_a.weight"));
  DS4_ASSIGN(const auto experts, dims_of(file, "ffn_gate_exps.weight"));
  model::ModelShape shape;
  shape.layers = 1;
  shape.ratios = {0};
  shape.width = norm[0];
  shape.q_rank = query[0];
  shape.heads = query[1] / model::head_dim;
  if (output_a[0] == 0 || shape.heads * uint64_t{model::head_dim} % output_a[0] != 0)
    return fail(ErrorCode::format, "{}: tensor mtp.0.attn_output_a.weight does not fit {} heads", file.path(),
                shape.heads);
  shape.output_groups = static_cast<uint32_t>(shape.heads * uint64_t{model::head_dim} / output_a[0]);
  shape.output_rank = shape.output_groups > 0 ? output_a[1] / shape.output_groups : 0;
  shape.expert_width = experts[1];
  shape.experts = experts[2];
  shape.vocabulary = shape.experts_used = shape.index_heads = shape.index_top_k = 1;
  shape.routed_scale = 1;
  return shape;
}

}  // namespace ds4::quantize
