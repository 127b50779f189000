#include "model/weight_groups.hpp"

#include <array>

namespace ds4::model {
namespace {

constexpr std::array kinds = {"token embedding",
                              "attention projections",
                              "compressors, indexer, routers",
                              "hyper connections",
                              "routed experts",
                              "shared experts",
                              "norms and tables",
                              "output"};

size_t kind_of(TensorRole role) {
  switch (role) {
    case TensorRole::embedding:
      return 0;
    case TensorRole::projection:
      return 1;
    case TensorRole::small_matrix:
      return 2;
    case TensorRole::mixer:
      return 3;
    case TensorRole::gate_up_expert:
    case TensorRole::down_expert:
      return 4;
    case TensorRole::shared_expert:
      return 5;
    case TensorRole::vector:
    case TensorRole::table:
      return 6;
    case TensorRole::output:
      return 7;
  }
  return 6;
}

}  // namespace

std::vector<MemoryPlan::Part> group_weights(
    const ModelShape& shape, const ModelWeights& weights,
    const std::function<uint64_t(const Tensor&, TensorRole)>& bytes_of) {
  ModelWeights copy = weights;  // the list points into what it is given
  std::array<uint64_t, kinds.size()> bytes{};
  for (const TensorSlot& slot : list_model_tensors(shape, copy)) {
    bytes[kind_of(slot.role)] += bytes_of(*slot.tensor, slot.role);
  }
  std::vector<MemoryPlan::Part> parts;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (bytes[i] > 0) parts.push_back({kinds[i], bytes[i]});
  }
  return parts;
}

uint64_t mtp_bytes(const ModelShape& shape, const MtpWeights& mtp,
                   const std::function<uint64_t(const Tensor&, TensorRole)>& bytes_of) {
  MtpWeights copy = mtp;
  uint64_t bytes = 0;
  for (const TensorSlot& slot : list_mtp_tensors(shape, copy)) bytes += bytes_of(*slot.tensor, slot.role);
  return bytes;
}

}  // namespace ds4::model
