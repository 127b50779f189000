// The scratch memory of half_experts(): places, tiles, and the activations between its kernels.
//
// Slots get places: those of routed experts first, by expert, then token; then those of the shared expert, by
// token. Activations lie in order of places, so that a tile reads and writes neighbours; those of a token are
// copied to the places of its slots.
//
// Columns of the activations are permuted within blocks of 128, so that a lane which decodes neighbouring
// weights has what a tensor-core fragment wants of it: position 16 s + 8 h + 2 c + i holds column
// 32 c + 4 s + 2 i + h (s of 8, h of 2, c of 4, i of 2). Lane c of a fragment row thus owns 32 whole columns,
// four for each product of 16, and pairs bytes 0 and 2, 1 and 3 of a word, which formats with byte codes give
// cheapest. Columns after the last one are zeros.
#pragma once

#include "backend/cuda/gemm/half_experts.hpp"

namespace ds4::cuda {

/// Columns of a step: what a stage of the kernels' pipeline holds.
inline constexpr uint32_t expert_step_columns = 128;
/// The most tokens of a tile, with warpgroup products.
inline constexpr uint32_t max_half_tile_tokens = 128;

/// `count` places of one expert from `first` on.
struct HalfExpertTile {
  uint32_t expert, first, count;
};

/// Tiles of one launch, and the counter by which blocks take the next one.
struct HalfExpertTiles {
  const HalfExpertTile* tiles;
  const uint32_t* count;
  uint32_t* next;
};

/// The two products, each for routed experts and the shared one.
enum HalfExpertLaunch : uint32_t { routed_gate_up, shared_gate_up, routed_down, shared_down, launches };

struct HalfExpertScratch {
  uint32_t* tile_counts;   // [2]: routed, shared
  uint32_t* next;          // [launches]
  uint32_t* expert_first;  // [E]: place of the first slot
  uint32_t* expert_count;  // [E]
  HalfExpertTile* routed_tiles;
  HalfExpertTile* shared_tiles;
  float* place_weight;   // [tokens * (K + 1)]
  uint32_t* slot_place;  // [tokens * (K + 1)]
  __half* mid;           // [tokens * (K + 1)][mid_stride], permuted
  float* products;       // [tokens * (K + 1)][d], where x lay
  __half* x;             // [tokens * (K + 1)][x_stride], permuted
  uint32_t x_stride, mid_stride;
  size_t bytes;
};

/// Smallest tile that any of the kernels cuts.
inline constexpr uint32_t min_half_tile_tokens = 32;

inline uint32_t whole_steps(uint32_t columns) {
  return (columns + expert_step_columns - 1) / expert_step_columns * expert_step_columns;
}

inline HalfExpertScratch half_expert_scratch(void* base, uint32_t tokens, uint32_t experts,
                                             uint32_t experts_per_token, uint32_t width,
                                             uint32_t expert_width) {
  HalfExpertScratch s = {};
  const uintptr_t start = reinterpret_cast<uintptr_t>(base);
  const auto take = [&]<class T>(T*& array, size_t count) {
    array = reinterpret_cast<T*>(start + s.bytes);
    s.bytes += (count * sizeof(T) + 255) / 256 * 256;
  };
  const size_t slots = size_t{tokens} * (experts_per_token + 1), routed = slots - tokens;
  s.x_stride = whole_steps(width);
  s.mid_stride = whole_steps(expert_width);
  take(s.tile_counts, 2);
  take(s.next, launches);
  take(s.expert_first, experts);
  take(s.expert_count, experts);
  take(s.routed_tiles, (routed < experts ? routed : experts) + routed / min_half_tile_tokens);
  take(s.shared_tiles, tokens / min_half_tile_tokens + 1);
  take(s.place_weight, slots);
  take(s.slot_place, slots);
  take(s.mid, slots * s.mid_stride);
  const size_t x_floats = slots * (s.x_stride / 2), product_floats = slots * width;
  take(s.products, x_floats > product_floats ? x_floats : product_floats);
  s.x = reinterpret_cast<__half*>(s.products);
  return s;
}

/// Fills everything up to `x`: two launches that sort the slots and cut tiles of at most `tile_tokens`, and
/// one that permutes x.
cudaError_t half_expert_groups(const HalfExperts& arguments, const HalfExpertScratch& scratch,
                               uint32_t tile_tokens, cudaStream_t stream);

/// Adds to the sums of `arguments`. After the products of gate and up, before those of down.
cudaError_t add_expert_inputs(const HalfExperts& arguments, const HalfExpertScratch& scratch,
                              cudaStream_t stream);

}  // namespace ds4::cuda
