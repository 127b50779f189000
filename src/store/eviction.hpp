// What goes when there is no room, and which states of a growing text are kept: decisions without files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "store/hash128.hpp"
#include "store/store_index.hpp"

namespace ds4::store {

inline constexpr double hit_half_life_s = 21600;
/// So many frontiers of one text that no other text shares, at most.
inline constexpr size_t most_unshared_frontiers = 8;

/// Hits as they count now. A clock that goes backwards takes nothing away; below 0.01 there is nothing left.
double decayed_hits(double hits, int64_t used, int64_t now);

/// (hits + 1) * tokens / bytes, where having been saved counts as a hit too.
double eviction_score(double hits, int64_t used, int64_t now, uint64_t tokens, uint64_t bytes);

using KeySet = std::unordered_set<Hash128, HashOfHash128>;

struct EvictionInput {
  std::vector<FrontierRow> frontiers;
  std::vector<SegmentRow> segments;
  KeySet protected_keys;     // of frontiers that must stay
  int64_t held_segment = 0;  // must stay with what is before it; 0: none
  uint64_t bytes_to_free = 0;
  int64_t now = 0;
};

struct EvictionPlan {
  std::vector<FrontierRow> frontiers;
  std::vector<SegmentRow> segments;  // those that nobody needs then, children before parents
  uint64_t freed_bytes = 0;
};

/// Frontiers in the order in which they should go, until enough is free or nothing is left that may go. First
/// those that one text alone needs, by score; then anchors: where several texts branch, and where
/// conversations begin (for a day after their last use). A plan that frees too little is one that failed.
EvictionPlan plan_eviction(const EvictionInput& input);

/// Segments that nothing needs, children before parents.
std::vector<SegmentRow> unneeded_segments(std::span<const FrontierRow> frontiers,
                                          std::span<const SegmentRow> segments, int64_t held_segment = 0);

/// `positions` of the frontiers of one text, ascending, the newest last: those to be given up so that at most
/// `keep` are left, the newest among them, with gaps that grow with the distance from it.
std::vector<size_t> plan_thinning(std::span<const uint64_t> positions, size_t keep = most_unshared_frontiers);

}  // namespace ds4::store
