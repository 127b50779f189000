// The feed-forward products of a mixture-of-experts layer: gate and up with SwiGLU, then down summed over
// experts.
#pragma once

#include "backend/cuda/device_types.hpp"
#include "backend/cuda/hc/hyper_connection.hpp"

namespace ds4::cuda {

/// Slots of a token r: r * (K + 1) + k for its K routed experts, r * (K + 1) + K for the shared expert.
struct ExpertsGateUp {
  DeviceMatrix gate, up;                // [E * F][d], expert e from row e * F; both of one type
  DeviceMatrix shared_gate, shared_up;  // [F][d], both of one type
  DeviceActivations x;                  // [tokens][stride >= d]
  const int32_t* ids = nullptr;         // [tokens][K], ascending within a token, each in [0, E)
  const float* weights = nullptr;       // [tokens][K]
  float* mid = nullptr;            // [tokens * (K + 1)][F]: silu(min(g, 10)) * clamp(u, -10, 10) * weight
  uint32_t tokens = 0;             // 1 .. max_rows
  uint32_t experts_per_token = 0;  // K, 1 .. 32
  uint32_t features = 0;           // F
};

struct ExpertsDown {
  DeviceMatrix down;             // [E * outputs][F], expert e from row e * outputs
  DeviceMatrix shared_down;      // [outputs][F]
  DeviceActivations mid;         // [tokens * (K + 1)][stride >= F]: the result of gate_up and its int8 form
  const int32_t* ids = nullptr;  // [tokens][K], ascending within a token
  float* out = nullptr;          // [tokens][out_stride]
  uint32_t out_stride = 0;
  uint32_t tokens = 0;
  uint32_t experts_per_token = 0;
  uint32_t outputs = 0;  // d
  MixFinish mix;         // done beside, if it has a mixer (slices > 0)
};

/// Any matrix type, of its own for routed and shared experts. Columns as gemv() wants them. Results depend on
/// the token, its experts and weights only, whatever other tokens are in the pass. cudaErrorInvalidValue when
/// shapes disagree.
cudaError_t experts_gate_up(const ExpertsGateUp& args, cudaStream_t stream);

/// out[r] = sum over k, ascending, of down[ids[r][k]] . mid[slot(r, k)], plus shared_down . mid[slot(r, K)].
cudaError_t experts_down(const ExpertsDown& args, cudaStream_t stream);

}  // namespace ds4::cuda
