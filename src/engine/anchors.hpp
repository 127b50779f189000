// Earlier states of a session that it can go back to.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/backend.hpp"
#include "ds4/session.hpp"

namespace ds4 {

/// State, with its logits, after `position` tokens.
struct Anchor {
  size_t position = 0;
  std::shared_ptr<const backend::StateImage> image;
  bool pinned = false;  // not thinned
};

/// A bounded number of anchors, denser near the end: old ones are thinned so that the distance between
/// neighbours grows with the distance from the newest. Pinned ones stay.
class Anchors {
 public:
  static constexpr size_t max_count = 16;  // pinned ones included
  static constexpr size_t max_pinned = max_kept_anchors;

  /// Positions come in ascending order; an anchor at the newest position replaces it and is pinned if that
  /// was.
  void add(Anchor anchor);
  /// Pins the anchor at `position`; of too many pinned ones the oldest becomes like others. False if there is
  /// no anchor.
  bool pin(size_t position);
  /// Forgets the anchor that is missed least, but neither a pinned one nor the newest. False if there is no
  /// other.
  bool drop_one();
  /// The newest anchor at or before `position`, or null.
  const Anchor* find(size_t position) const;
  /// Forgets anchors after `position`.
  void truncate(size_t position);
  void clear() { anchors_.clear(); }
  size_t size() const { return anchors_.size(); }
  size_t own_bytes() const;  // of all images

 private:
  std::vector<Anchor> anchors_;
};

}  // namespace ds4
