#include "grammar/stacks.hpp"

#include <utility>

namespace ds4::grammar {

void Stacks::compact(std::vector<Configuration>& configurations) {
  std::vector<uint32_t> renamed(frames_.size(), 0);
  for (const Configuration& configuration : configurations) {
    for (uint32_t frame = configuration.frame; frame != 0 && renamed[frame] == 0;
         frame = frames_[frame].parent) {
      renamed[frame] = 1;
    }
  }
  Stacks kept;
  // A parent is older than its children, so it has been copied before them.
  for (uint32_t frame = 1; frame < frames_.size(); ++frame) {
    if (renamed[frame] == 0) continue;
    const Frame& old = frames_[frame];
    renamed[frame] = static_cast<uint32_t>(kept.frames_.size());
    kept.frames_.push_back({.state = old.state,
                            .count = old.count,
                            .parent = renamed[old.parent],
                            .depth = old.depth,
                            .next_sibling = kept.frames_[renamed[old.parent]].first_child});
    kept.frames_[renamed[old.parent]].first_child = renamed[frame];
  }
  for (Configuration& configuration : configurations) configuration.frame = renamed[configuration.frame];
  *this = std::move(kept);
}

}  // namespace ds4::grammar
