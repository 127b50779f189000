#include "engine/anchors.hpp"

#include <utility>

namespace ds4 {

void Anchors::add(Anchor anchor) {
  truncate(anchor.position);
  if (!anchors_.empty() && anchors_.back().position == anchor.position) anchors_.pop_back();
  anchors_.push_back(std::move(anchor));
  if (anchors_.size() > max_count) thin();
}

const Anchor* Anchors::find(size_t position) const {
  const Anchor* best = nullptr;
  for (const Anchor& anchor : anchors_) {
    if (anchor.position <= position) best = &anchor;
  }
  return best;
}

void Anchors::truncate(size_t position) {
  while (!anchors_.empty() && anchors_.back().position > position) anchors_.pop_back();
}

// Drops the anchor whose absence leaves the smallest gap in proportion to its distance from the newest one.
void Anchors::thin() {
  const double end = static_cast<double>(anchors_.back().position);
  size_t victim = 0;
  double smallest = 0;
  for (size_t i = 0; i + 1 < anchors_.size(); ++i) {
    const size_t before = i == 0 ? 0 : anchors_[i - 1].position;
    const double gap = static_cast<double>(anchors_[i + 1].position - before);
    const double score = gap / (end - static_cast<double>(anchors_[i].position));
    if (i == 0 || score < smallest) {
      smallest = score;
      victim = i;
    }
  }
  anchors_.erase(anchors_.begin() + static_cast<ptrdiff_t>(victim));
}

}  // namespace ds4
