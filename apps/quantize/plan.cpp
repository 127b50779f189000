#include "plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.hpp"

namespace ds4::quantize {
namespace {

using format::TensorType;

/// Nanoseconds for a weight on one thread of the machine of docs/quantize.md §2.6.
double nanoseconds(TensorType type) {
  switch (type) {
    case TensorType::iq2_xxs:
      return 33;
    case TensorType::q2_k:
      return 11;
    case TensorType::q4_k:
      return 9;
    case TensorType::mxfp4:
      return 20;
    default:
      return 4;
  }
}

}  // namespace

uint64_t PlannedTensor::weights() const {
  uint64_t weights = 1;
  for (const uint64_t dim : tensor->dims) weights *= dim;
  return weights;
}

uint64_t PlannedTensor::bytes() const {
  return weights() / tensor->columns() * format::row_bytes(type, tensor->columns());
}

double PlannedTensor::cost() const {
  return static_cast<double>(weights()) * nanoseconds(type);
}

Result<std::vector<PlannedTensor>> plan_tensors(std::span<const MappedTensor> tensors, const Recipe& recipe,
                                                uint32_t layers) {
  std::vector<PlannedTensor> plan;
  plan.reserve(tensors.size());
  for (const MappedTensor& tensor : tensors) {
    const TensorType type = recipe.type_for(tensor.name, tensor.role, layers);
    const uint32_t block = format::type_traits(type)->block_elements;
    if (tensor.columns() % block != 0)
      return fail(ErrorCode::unsupported,
                  "tensor {} has rows of {} values, which are no whole blocks of {} ({})", tensor.name,
                  tensor.columns(), format::type_name(type), block);
    plan.push_back({&tensor, type});
  }
  constexpr std::string_view gate_name = "ffn_gate_exps.weight";
  for (const PlannedTensor& gate : plan) {
    if (!gate.tensor->name.ends_with(gate_name)) continue;
    std::string name = gate.tensor->name;
    name.replace(name.size() - gate_name.size(), gate_name.size(), "ffn_up_exps.weight");
    const auto up = std::find_if(plan.begin(), plan.end(),
                                 [&](const PlannedTensor& planned) { return planned.tensor->name == name; });
    if (up != plan.end() && up->type != gate.type)
      return fail(ErrorCode::unsupported, "tensors {} and {} must have one format, but would have {} and {}",
                  gate.tensor->name, name, format::type_name(gate.type), format::type_name(up->type));
  }
  return plan;
}

std::string plan_text(std::span<const PlannedTensor> plan) {
  struct Sum {
    size_t tensors = 0;
    uint64_t weights = 0, bytes = 0;
  };
  std::map<std::string_view, Sum> sums;
  size_t name_width = 0;
  for (const PlannedTensor& planned : plan) name_width = std::max(name_width, planned.tensor->name.size());
  std::string text;
  for (const PlannedTensor& planned : plan) {
    text += fmt::format("{:<{}}  [{}]  {} -> {}  {}\n", planned.tensor->name, name_width,
                        fmt::join(planned.tensor->dims, ", "), source_type_name(planned.tensor->sources[0]),
                        format::type_name(planned.type), planned.bytes());
    Sum& sum = sums[format::type_name(planned.type)];
    ++sum.tensors;
    sum.weights += planned.weights();
    sum.bytes += planned.bytes();
  }
  text += '\n';
  for (const auto& [type, sum] : sums)
    text += fmt::format("{:<8} {:>5} tensors {:>16} weights {:>16} bytes\n", type, sum.tensors, sum.weights,
                        sum.bytes);
  return text;
}

}  // namespace ds4::quantize
