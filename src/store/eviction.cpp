#include "store/eviction.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_map>

namespace ds4::store {
namespace {

constexpr double anchor_lifetime_s = 4 * hit_half_life_s;

/// Who needs whom, while frontiers are taken away.
class Forest {
 public:
  Forest(std::span<const FrontierRow> frontiers, std::span<const SegmentRow> segments, int64_t held) {
    for (const SegmentRow& segment : segments) segments_[segment.id].row = &segment;
    for (const SegmentRow& segment : segments) need(segment.parent);
    for (const FrontierRow& frontier : frontiers) {
      need(frontier.segment);
      if (frontier.parent != 0) ++branches_[frontier.parent];
    }
    need(held);
  }

  size_t branches(int64_t frontier) const {
    const auto found = branches_.find(frontier);
    return found == branches_.end() ? 0 : found->second;
  }

  /// What taking a frontier away would free.
  uint64_t own_bytes(const FrontierRow& frontier) const {
    uint64_t bytes = frontier.file_bytes;
    size_t steps = 0;
    for (auto at = segments_.find(frontier.segment);
         at != segments_.end() && at->second.needed_by == 1 && steps <= segments_.size(); ++steps) {
      bytes += at->second.row->file_bytes;
      at = segments_.find(at->second.row->parent);
    }
    return bytes;
  }

  void take(const FrontierRow& frontier, std::vector<SegmentRow>& gone) {
    // Its children are its parent's from now on.
    const size_t children = branches(frontier.id);
    if (frontier.parent != 0) {
      branches_[frontier.parent] += children;
      if (branches_[frontier.parent] > 0) --branches_[frontier.parent];
    }
    branches_.erase(frontier.id);
    drop_need(frontier.segment, gone);
  }

  void take_unneeded(std::vector<SegmentRow>& gone) {
    std::vector<int64_t> leaves;
    for (const auto& [id, node] : segments_) {
      if (node.needed_by == 0) leaves.push_back(id);
    }
    for (const int64_t id : leaves) remove(id, gone);
  }

 private:
  struct Node {
    const SegmentRow* row = nullptr;
    size_t needed_by = 0;
  };

  void need(int64_t segment) {
    const auto found = segments_.find(segment);
    if (found != segments_.end()) ++found->second.needed_by;
  }
  void drop_need(int64_t segment, std::vector<SegmentRow>& gone) {
    const auto found = segments_.find(segment);
    if (found == segments_.end() || --found->second.needed_by > 0) return;
    remove(segment, gone);
  }
  void remove(int64_t segment, std::vector<SegmentRow>& gone) {
    // Upwards as long as the parent is needed by nobody else.
    for (auto found = segments_.find(segment); found != segments_.end() && found->second.needed_by == 0;) {
      const SegmentRow* row = found->second.row;
      gone.push_back(*row);
      segments_.erase(found);
      found = segments_.find(row->parent);
      if (found != segments_.end() && found->second.needed_by > 0) --found->second.needed_by;
    }
  }

  std::unordered_map<int64_t, Node> segments_;
  std::unordered_map<int64_t, size_t> branches_;
};

bool is_anchor(const FrontierRow& frontier, const Forest& forest, int64_t now) {
  if (forest.branches(frontier.id) > 1) return true;
  return frontier.anchor && static_cast<double>(now - frontier.used) < anchor_lifetime_s;
}

}  // namespace

double decayed_hits(double hits, int64_t used, int64_t now) {
  const double age = std::max(0.0, static_cast<double>(now) - static_cast<double>(used));
  const double left = hits * std::exp2(-age / hit_half_life_s);
  return left < 0.01 ? 0 : left;
}

double eviction_score(double hits, int64_t used, int64_t now, uint64_t tokens, uint64_t bytes) {
  if (bytes == 0) return 0;
  return (decayed_hits(hits + 1, used, now) + 1) * static_cast<double>(tokens) / static_cast<double>(bytes);
}

EvictionPlan plan_eviction(const EvictionInput& input) {
  EvictionPlan plan;
  Forest forest(input.frontiers, input.segments, input.held_segment);
  std::vector<const FrontierRow*> left;
  for (const FrontierRow& frontier : input.frontiers) {
    if (!frontier.pinned && !input.protected_keys.contains(frontier.key)) left.push_back(&frontier);
  }
  while (plan.freed_bytes < input.bytes_to_free && !left.empty()) {
    const auto rank = [&](const FrontierRow* frontier) {
      return std::tuple(is_anchor(*frontier, forest, input.now),
                        eviction_score(frontier->hits, frontier->used, input.now, frontier->position,
                                       forest.own_bytes(*frontier)),
                        frontier->used);
    };
    auto lowest = left.begin();
    auto lowest_rank = rank(*lowest);
    for (auto candidate = lowest + 1; candidate != left.end(); ++candidate) {
      const auto candidate_rank = rank(*candidate);
      if (candidate_rank >= lowest_rank) continue;
      lowest = candidate;
      lowest_rank = candidate_rank;
    }
    const FrontierRow* victim = *lowest;
    left.erase(lowest);
    const size_t before = plan.segments.size();
    forest.take(*victim, plan.segments);
    plan.freed_bytes += victim->file_bytes;
    for (size_t i = before; i < plan.segments.size(); ++i) plan.freed_bytes += plan.segments[i].file_bytes;
    plan.frontiers.push_back(*victim);
  }
  return plan;
}

std::vector<SegmentRow> unneeded_segments(std::span<const FrontierRow> frontiers,
                                          std::span<const SegmentRow> segments, int64_t held_segment) {
  std::vector<SegmentRow> gone;
  Forest forest(frontiers, segments, held_segment);
  forest.take_unneeded(gone);
  return gone;
}

std::vector<size_t> plan_thinning(std::span<const uint64_t> positions, size_t keep) {
  std::vector<size_t> kept(positions.size()), gone;
  for (size_t i = 0; i < kept.size(); ++i) kept[i] = i;
  while (kept.size() > std::max<size_t>(keep, 1)) {
    // The one whose absence leaves the smallest gap for its distance from the newest. The first has a gap
    // down to 0 behind it.
    const uint64_t newest = positions[kept.back()];
    size_t best = 0;
    double smallest = 0;
    for (size_t i = 0; i + 1 < kept.size(); ++i) {
      const uint64_t below = i == 0 ? 0 : positions[kept[i - 1]];
      const double gap = static_cast<double>(positions[kept[i + 1]] - below);
      const double ratio = gap / static_cast<double>(newest - below + 1);
      if (i == 0 || ratio < smallest) {
        best = i;
        smallest = ratio;
      }
    }
    gone.push_back(kept[best]);
    kept.erase(kept.begin() + static_cast<ptrdiff_t>(best));
  }
  return gone;
}

}  // namespace ds4::store
