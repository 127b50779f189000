// Earlier states of a session that it can go back to.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/backend.hpp"

namespace ds4 {

/// State, with its logits, after `position` tokens.
struct Anchor {
  size_t position = 0;
  std::shared_ptr<const backend::StateImage> image;
};

/// A bounded number of anchors, denser near the end: old ones are thinned so that the distance between
/// neighbours grows with the distance from the newest.
class Anchors {
 public:
  static constexpr size_t max_count = 16;

  /// Positions come in ascending order; an anchor at the newest position replaces it.
  void add(Anchor anchor);
  /// The newest anchor at or before `position`, or null.
  const Anchor* find(size_t position) const;
  /// Forgets anchors after `position`.
  void truncate(size_t position);
  void clear() { anchors_.clear(); }
  size_t size() const { return anchors_.size(); }

 private:
  void thin();
  std::vector<Anchor> anchors_;
};

}  // namespace ds4
