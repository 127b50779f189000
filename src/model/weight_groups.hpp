// The bytes of a model's weights by kind.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ds4/memory.hpp"
#include "model/tensor_list.hpp"

namespace ds4::model {

/// Sums bytes_of(tensor, role) over the tensors of each kind; kinds without bytes are left out.
std::vector<MemoryPlan::Part> group_weights(
    const ModelShape& shape, const ModelWeights& weights,
    const std::function<uint64_t(const Tensor&, TensorRole)>& bytes_of);

/// The same sum for the MTP block.
uint64_t mtp_bytes(const ModelShape& shape, const MtpWeights& mtp,
                   const std::function<uint64_t(const Tensor&, TensorRole)>& bytes_of);

}  // namespace ds4::model
