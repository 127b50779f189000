// The stacks of a pushdown automaton, as a tree of frames that all of them share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ds4::grammar {

/// What a finished rule returns to. Frame 0 is the bottom: the end of the text.
struct Frame {
  uint32_t state = 0;   // to continue in
  uint32_t count = 0;   // its counter
  uint32_t parent = 0;  // the frame below
  uint32_t depth = 0;   // of nested JSON containers
  uint32_t first_child = 0, next_sibling = 0;
};

/// A state of the automaton, its counter, and the frame that it returns to.
struct Configuration {
  uint32_t state = 0;
  uint32_t count = 0;
  uint32_t frame = 0;
  auto operator<=>(const Configuration&) const = default;
};

/// Equal stacks are the same frame, so that configurations can be compared.
class Stacks {
 public:
  Stacks() : frames_(1) {}

  const Frame& operator[](uint32_t frame) const { return frames_[frame]; }
  size_t size() const { return frames_.size(); }

  uint32_t push(uint32_t parent, uint32_t state, uint32_t count, bool deeper) {
    for (uint32_t child = frames_[parent].first_child; child != 0; child = frames_[child].next_sibling) {
      if (frames_[child].state == state && frames_[child].count == count) return child;
    }
    const auto created = static_cast<uint32_t>(frames_.size());
    frames_.push_back({.state = state,
                       .count = count,
                       .parent = parent,
                       .depth = frames_[parent].depth + (deeper ? 1 : 0),
                       .next_sibling = frames_[parent].first_child});
    frames_[parent].first_child = created;
    return created;
  }

  /// Forgets all frames but the first `size`. Frames are always the first children of their parents when they
  /// are the youngest, so this undoes pushes.
  void shrink(size_t size) {
    while (frames_.size() > size) {
      frames_[frames_.back().parent].first_child = frames_.back().next_sibling;
      frames_.pop_back();
    }
  }

  /// Keeps only what the configurations need, and renames their frames.
  void compact(std::vector<Configuration>& configurations);

 private:
  std::vector<Frame> frames_;
};

}  // namespace ds4::grammar
