// Mixture of experts of a prefill pass: slots sorted by expert, gate and up, down, and the sum over a token's
// slots. Layout: half_expert_scratch.cuh. Preconditions: half_experts.hpp. FLOPs: 6 d F for each token and
// slot, 1.44 T for 4096 tokens of Flash; bytes: every touched expert once for up to 128 of its tokens, 1.9 GB
// there, and 1.4 GB of activations and products. Why: products of slots are summed by a kernel of their own,
// in the order of k, so that a token's result does not depend on its neighbours.
#include "backend/cuda/device/tensor_map.hpp"
#include "backend/cuda/device/warpgroup.hpp"
#include "backend/cuda/gemm/half_expert_product.hpp"
#include "backend/cuda/gemm/half_experts.hpp"

namespace ds4::cuda {
namespace {

using format::TensorType;

constexpr uint32_t sum_threads = 128;

/// Four outputs of a token per thread.
__global__ void __launch_bounds__(sum_threads)
    sum_kernel(const float* products, const uint32_t* slot_place, uint32_t slots, uint32_t outputs,
               float* out, uint32_t out_stride) {
  const uint32_t column = (blockIdx.x * sum_threads + threadIdx.x) * 4;
  if (column >= outputs) return;
  const uint32_t* const places = slot_place + size_t{blockIdx.y} * slots;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (uint32_t k = 0; k < slots; ++k) {
    const float4 v = *reinterpret_cast<const float4*>(products + size_t{places[k]} * outputs + column);
    sum.x = __fadd_rn(sum.x, v.x);
    sum.y = __fadd_rn(sum.y, v.y);
    sum.z = __fadd_rn(sum.z, v.z);
    sum.w = __fadd_rn(sum.w, v.w);
  }
  float* const to = out + size_t{blockIdx.y} * out_stride + column;
  if (out_stride % 4 == 0) {
    *reinterpret_cast<float4*>(to) = sum;
  } else {
    to[0] = sum.x;
    to[1] = sum.y;
    to[2] = sum.z;
    to[3] = sum.w;
  }
}

bool fits(const DeviceMatrix& m, size_t rows, uint32_t cols) {
  uint32_t block = 0;
  switch (m.type) {
    case TensorType::q4_k:
    case TensorType::q2_k:
    case TensorType::iq2_xxs:
      block = 256;
      break;
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16:
    case TensorType::q8_0:
    case TensorType::mxfp4:
      block = 32;
      break;
    default:
      return false;
  }
  return m.rows == rows && m.cols == cols && cols != 0 && cols % block == 0;
}

bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

bool is_valid(const HalfExperts& a) {
  constexpr uint32_t max_tokens = 65535, max_experts = 1024, max_experts_per_token = 32;
  const uint32_t width = a.gate.cols, features = a.down.cols;
  if (a.tokens < 1 || a.tokens > max_tokens || a.experts < 1 || a.experts > max_experts ||
      a.experts_per_token < 1 || a.experts_per_token > max_experts_per_token || a.ids == nullptr ||
      a.weights == nullptr || a.out == nullptr || a.out_stride < width || a.scratch == nullptr) {
    return false;
  }
  const size_t up_rows = size_t{a.experts} * features, down_rows = size_t{a.experts} * width;
  constexpr size_t max_index = 0xffffffff;  // of 16 bytes of activations
  const size_t slots = size_t{a.tokens} * (a.experts_per_token + 1);
  const size_t widest = width > features ? width : features;
  if (slots * (widest / 8 + 16) > max_index || up_rows > max_index || down_rows > max_index) return false;
  return a.gate.type == a.up.type && a.shared_gate.type == a.shared_up.type && fits(a.gate, up_rows, width) &&
         fits(a.up, up_rows, width) && fits(a.down, down_rows, features) &&
         fits(a.shared_gate, features, width) && fits(a.shared_up, features, width) &&
         fits(a.shared_down, width, features) && a.x.high != nullptr && a.x.stride >= width &&
         a.x.stride % 4 == 0 && is_aligned(a.x.high) && is_aligned(a.out);
}

cudaError_t read_device(HalfExpertDevice& device) {
  int current = 0, processors = 0, shared_bytes = 0;
  cudaError_t status = cudaGetDevice(&current);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, current);
  }
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
  }
  device = {static_cast<uint32_t>(processors), static_cast<uint32_t>(shared_bytes)};
  return status;
}

uint32_t tiles_of(uint32_t rows, uint32_t tile) {
  return (rows + tile - 1) / tile;
}

}  // namespace

size_t half_experts_scratch_bytes(uint32_t tokens, uint32_t experts, uint32_t experts_per_token,
                                  uint32_t width, uint32_t expert_width) {
  return half_expert_scratch(nullptr, tokens, experts, experts_per_token, width, expert_width).bytes;
}

cudaError_t half_experts(const HalfExperts& a, cudaStream_t stream, PrefillKernel kernel) {
  if (!is_valid(a)) return cudaErrorInvalidValue;
  HalfExpertDevice device;
  cudaError_t status = read_device(device);
  if (status != cudaSuccess) return status;
  const uint32_t width = a.gate.cols, features = a.down.cols;
  const bool warpgroup = kernel == PrefillKernel::best && has_warpgroup_products();
  constexpr uint32_t small_shared_bytes = 128 << 10;
  const uint32_t portable_tokens =
      device.shared_bytes < small_shared_bytes ? min_half_tile_tokens : max_portable_tile_tokens;
  const HalfExpertScratch s =
      half_expert_scratch(a.scratch, a.tokens, a.experts, a.experts_per_token, width, features);
  const uint32_t tile_tokens = warpgroup ? max_half_tile_tokens : portable_tokens;
  status = half_expert_groups(a, s, tile_tokens, stream);
  if (status != cudaSuccess) return status;

  const HalfExpertTiles routed = {s.routed_tiles, s.tile_counts, nullptr},
                        shared = {s.shared_tiles, s.tile_counts + 1, nullptr};
  const auto with_counter = [&](HalfExpertTiles tiles, HalfExpertLaunch launch) {
    tiles.next = s.next + launch;
    return tiles;
  };
  HalfExpertProduct up;
  up.x = s.x;
  up.x_stride = s.x_stride;
  up.expert_rows = features;
  up.row_tiles = tiles_of(features, expert_step_columns);
  up.steps = tiles_of(width, expert_step_columns);
  up.tile_tokens = tile_tokens;
  up.place_weight = s.place_weight;
  up.mid = s.mid;
  up.mid_stride = s.mid_stride;
  HalfExpertProduct down;
  down.x = s.mid;
  down.x_stride = s.mid_stride;
  down.expert_rows = width;
  down.row_tiles = tiles_of(width, 2 * expert_step_columns);
  down.steps = tiles_of(features, expert_step_columns);
  down.tile_tokens = tile_tokens;
  down.products = s.products;
  if (warpgroup) {
    const uint32_t slots = a.tokens * (a.experts_per_token + 1);
    status = make_tensor_map({s.x, s.x_stride, slots, s.x_stride, x_box_tokens}, up.x_map);
    if (status != cudaSuccess) return status;
    status = make_tensor_map({s.mid, s.mid_stride, slots, s.mid_stride, x_box_tokens}, down.x_map);
    if (status != cudaSuccess) return status;
  }
  const auto run = [&](HalfExpertProduct& p, const DeviceMatrix& first, const DeviceMatrix& second,
                       const HalfExpertTiles& tiles, HalfExpertLaunch launch) {
    if (status != cudaSuccess) return;
    p.w[0] = first;
    p.w[1] = second;
    p.tiles = with_counter(tiles, launch);
    const bool is_up = launch == routed_gate_up || launch == shared_gate_up;
    status = is_up ? half_expert_gate_up(p, warpgroup, device, stream)
                   : half_expert_down(p, warpgroup, device, stream);
  };
  run(up, a.gate, a.up, routed, routed_gate_up);
  run(up, a.shared_gate, a.shared_up, shared, shared_gate_up);
  if (status == cudaSuccess && a.sums.tokens != nullptr) status = add_expert_inputs(a, s, stream);
  run(down, a.down, a.down, routed, routed_down);
  run(down, a.shared_down, a.shared_down, shared, shared_down);
  if (status != cudaSuccess) return status;
  const dim3 grid(tiles_of(width / 4, sum_threads), a.tokens);
  sum_kernel<<<grid, sum_threads, 0, stream>>>(s.products, s.slot_place, a.experts_per_token + 1, width,
                                               a.out, a.out_stride);
  return cudaPeekAtLastError();
}

}  // namespace ds4::cuda
