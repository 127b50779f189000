// What expert_groups() leaves in its scratch memory for the expert products.
#pragma once

#include "backend/cuda/gemm/expert_gemm.hpp"

namespace ds4::cuda {

/// The most tokens of a tile.
inline constexpr uint32_t expert_tile_tokens = 32;

/// `count` slots of one expert from slots[first] on.
struct ExpertTile {
  uint32_t expert, first, count;
};

struct ExpertScratch {
  uint32_t* tile_count;
  ExpertTile* tiles;  // [max_expert_tiles()]
  uint32_t* slots;    // [tokens * K], by expert, then token
};

inline size_t max_expert_tiles(uint32_t tokens, uint32_t experts_per_token, uint32_t experts) {
  const size_t entries = size_t{tokens} * experts_per_token;
  return (entries < experts ? entries : experts) + entries / expert_tile_tokens;
}

inline ExpertScratch expert_scratch(const ExpertGroups& groups) {
  uint8_t* const base = static_cast<uint8_t*>(groups.scratch);
  const size_t tiles = max_expert_tiles(groups.tokens, groups.experts_per_token, groups.experts);
  return {reinterpret_cast<uint32_t*>(base), reinterpret_cast<ExpertTile*>(base + 16),
          reinterpret_cast<uint32_t*>(base + 16 + tiles * sizeof(ExpertTile))};
}

}  // namespace ds4::cuda
