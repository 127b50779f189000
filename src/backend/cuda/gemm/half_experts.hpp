// The feed-forward products of a mixture-of-experts layer for a prefill pass: tokens grouped by expert,
// weights decoded to F16 in registers once per tile, tensor cores with F32 sums.
#pragma once

#include "backend/cuda/gemm/half_gemm.hpp"

namespace ds4::cuda {

/// Running sums of squares of what routed experts are multiplied with (docs/importance.md §1).
struct HalfExpertInputSums {
  double* gate_up = nullptr;             // [E][d]: of x
  double* down = nullptr;                // [E][F]: of what down is multiplied with
  unsigned long long* tokens = nullptr;  // [E]: slots
};

/// Slots of a token r: r * (K + 1) + k for its K routed experts, r * (K + 1) + K for the shared expert.
struct HalfExperts {
  DeviceMatrix gate, up, down;                       // [E * F][d], [E * F][d], [E * d][F]
  DeviceMatrix shared_gate, shared_up, shared_down;  // [F][d], [F][d], [d][F]
  HalfActivations x;                                 // [tokens][stride >= d]; low is not used
  const int32_t* ids = nullptr;                      // [tokens][K], ascending within a token, each in [0, E)
  const float* weights = nullptr;                    // [tokens][K]
  float* out = nullptr;                              // [tokens][out_stride]
  uint32_t out_stride = 0;
  uint32_t tokens = 0;
  uint32_t experts = 0;            // E, at most 1024
  uint32_t experts_per_token = 0;  // K, at most 32
  void* scratch = nullptr;         // half_experts_scratch_bytes(), aligned to 256
  HalfExpertInputSums sums;        // added to, in the order of tokens, if there are pointers
};

/// Grows with tokens * (K + 1) * (F + d): the activations between the products, the products, the groups.
size_t half_experts_scratch_bytes(uint32_t tokens, uint32_t experts, uint32_t experts_per_token,
                                  uint32_t width, uint32_t expert_width);

/// out[r] = sum over k, ascending, of weights[r][k] * down_k(silu(min(gate, 10)) * clamp(up, -10, 10)), then
/// the shared expert with weight 1 (docs/model.md §8). Any matrix type, of its own for routed and shared. A
/// token's results do not depend on the other tokens of the pass. At most 65,535 tokens; x and out aligned to
/// 16 bytes. cudaErrorInvalidValue when shapes disagree.
cudaError_t half_experts(const HalfExperts& arguments, cudaStream_t stream,
                         PrefillKernel kernel = PrefillKernel::best);

}  // namespace ds4::cuda
