#include "engine/anchors.hpp"

#include <algorithm>
#include <utility>

namespace ds4 {

void Anchors::add(Anchor anchor) {
  truncate(anchor.position);
  if (!anchors_.empty() && anchors_.back().position == anchor.position) {
    anchor.pinned = anchor.pinned || anchors_.back().pinned;
    anchors_.back() = std::move(anchor);
    return;
  }
  anchors_.push_back(std::move(anchor));
  if (anchors_.size() > max_count) drop_one();
}

bool Anchors::pin(size_t position) {
  const auto found = std::find_if(anchors_.begin(), anchors_.end(),
                                  [&](const Anchor& anchor) { return anchor.position == position; });
  if (found == anchors_.end()) return false;
  found->pinned = true;
  const auto is_pinned = [](const Anchor& anchor) { return anchor.pinned; };
  if (std::count_if(anchors_.begin(), anchors_.end(), is_pinned) > static_cast<ptrdiff_t>(max_pinned)) {
    std::find_if(anchors_.begin(), anchors_.end(), [&](const Anchor& anchor) {
      return anchor.pinned && anchor.position != position;
    })->pinned = false;
  }
  return true;
}

const Anchor* Anchors::find(size_t position) const {
  const Anchor* best = nullptr;
  for (const Anchor& anchor : anchors_) {
    if (anchor.position <= position) best = &anchor;
  }
  return best;
}

size_t Anchors::own_bytes() const {
  size_t bytes = 0;
  for (const Anchor& anchor : anchors_) bytes += anchor.image->own_bytes();
  return bytes;
}

void Anchors::truncate(size_t position) {
  while (!anchors_.empty() && anchors_.back().position > position) anchors_.pop_back();
}

// The one whose absence leaves the smallest gap in proportion to its distance from the newest.
bool Anchors::drop_one() {
  auto victim = anchors_.end();
  double smallest = 0;
  for (size_t i = 0; i + 1 < anchors_.size(); ++i) {
    if (anchors_[i].pinned) continue;
    const size_t before = i == 0 ? 0 : anchors_[i - 1].position;
    const double gap = static_cast<double>(anchors_[i + 1].position - before);
    const double score = gap / static_cast<double>(anchors_.back().position - anchors_[i].position);
    if (victim == anchors_.end() || score < smallest) {
      smallest = score;
      victim = anchors_.begin() + static_cast<ptrdiff_t>(i);
    }
  }
  if (victim == anchors_.end()) return false;
  anchors_.erase(victim);
  return true;
}

}  // namespace ds4
