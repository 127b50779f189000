// The expert products of experts.hpp on tensor cores, for passes of many tokens: tokens grouped by expert, so
// that the weights of an expert are decoded once for up to 32 of its tokens.
#pragma once

#include <cstddef>

#include "backend/cuda/gemm/gemm.hpp"
#include "backend/cuda/moe/experts.hpp"

namespace ds4::cuda {

/// The slots (experts.hpp) of a pass in order of expert, then token, cut into tiles of one expert each.
struct ExpertGroups {
  const int32_t* ids = nullptr;    // [tokens][K], ascending within a token, each in [0, experts)
  uint32_t tokens = 0;             // 1 .. max_gemm_tokens
  uint32_t experts_per_token = 0;  // K, 1 .. 32
  uint32_t experts = 0;            // 1 .. 1024
  void* scratch = nullptr;         // expert_groups_bytes(), aligned to 16
};

size_t expert_groups_bytes(uint32_t tokens, uint32_t experts_per_token, uint32_t experts);
cudaError_t expert_groups(const ExpertGroups& groups, cudaStream_t stream);

/// As experts_gate_up() and experts_down() for up to max_gemm_tokens tokens, of which `groups` was made from
/// the same ids. A token's results do not depend on the other tokens of the pass. cudaErrorInvalidValue when
/// shapes disagree.
cudaError_t expert_gemm_gate_up(const ExpertsGateUp& args, const ExpertGroups& groups, cudaStream_t stream);

/// `products` holds expert_products_bytes() bytes, aligned to 16: the result of every slot before the sum
/// over a token's slots, k ascending, the shared expert last. `outputs` a multiple of 4.
size_t expert_products_bytes(uint32_t tokens, uint32_t experts_per_token, uint32_t outputs);
cudaError_t expert_gemm_down(const ExpertsDown& args, const ExpertGroups& groups, float* products,
                             cudaStream_t stream);

}  // namespace ds4::cuda
