// What half_experts() asks of its product kernels, one launch for the routed experts and one for the shared.
#pragma once

#include <cuda.h>

#include "backend/cuda/gemm/half_expert_scratch.cuh"

namespace ds4::cuda {

/// Tokens that the copy engine takes at once.
inline constexpr uint32_t x_box_tokens = 16;
/// The most tokens of a tile of single warps' products.
inline constexpr uint32_t max_portable_tile_tokens = 64;

struct HalfExpertProduct {
  DeviceMatrix w[2];          // gate, up; or down twice
  const __half* x = nullptr;  // [places][x_stride], permuted
  CUtensorMap x_map = {};     // the same in boxes of x_box_tokens, for warpgroups
  uint32_t x_stride = 0;      // a multiple of 128
  HalfExpertTiles tiles = {};
  uint32_t expert_rows = 0;  // of one matrix and expert
  uint32_t row_tiles = 0;
  uint32_t steps = 0;        // of 128 columns
  uint32_t stages = 0;       // of the pipeline; the launch sets it
  uint32_t tile_tokens = 0;  // the most tokens of a tile
  const float* place_weight = nullptr;
  __half* mid = nullptr;  // [places][mid_stride], permuted
  uint32_t mid_stride = 0;
  float* products = nullptr;  // [places][expert_rows]
};

struct HalfExpertDevice {
  uint32_t processors = 0;
  uint32_t shared_bytes = 0;  // that a block may have
};

/// mid = silu(min(gate, 10)) * clamp(up, -10, 10) * weight of the place.
cudaError_t half_expert_gate_up(const HalfExpertProduct& product, bool warpgroup,
                                const HalfExpertDevice& device, cudaStream_t stream);
/// products = down . mid of the place.
cudaError_t half_expert_down(const HalfExpertProduct& product, bool warpgroup, const HalfExpertDevice& device,
                             cudaStream_t stream);

}  // namespace ds4::cuda
