#include "grammar/machine.hpp"

#include <algorithm>

namespace ds4::grammar {
namespace {

constexpr size_t kMostSeen = 4 * Machine::kMostConfigurations;
constexpr size_t kTableSize = 4 * kMostSeen;  // a power of two
constexpr size_t kSearchedInOrder = 24;

size_t hash(const Configuration& configuration) {
  const uint64_t mixed = (uint64_t{configuration.state} * 0x9E3779B97F4A7C15u) ^
                         (uint64_t{configuration.frame} * 0xC2B2AE3D27D4EB4Fu) ^
                         (uint64_t{configuration.count} * 0x165667B19E3779F9u);
  return static_cast<size_t>(mixed >> 32);
}

}  // namespace

/// False if the configuration has been entered before, or too many have.
bool Machine::remember(const Configuration& configuration) {
  if (seen_.size() < kSearchedInOrder) {
    if (std::find(seen_.begin(), seen_.end(), configuration) != seen_.end()) return false;
    seen_.push_back(configuration);
    return true;
  }
  if (seen_.size() >= kMostSeen) return false;
  const auto slot_of = [&](const Configuration& wanted) {
    size_t slot = hash(wanted) % kTableSize;
    while (seen_table_[slot] != 0 && seen_[seen_table_[slot] - 1] != wanted) slot = (slot + 1) % kTableSize;
    return slot;
  };
  if (seen_.size() == kSearchedInOrder) {
    seen_table_.assign(kTableSize, 0);
    for (size_t i = 0; i < seen_.size(); ++i) seen_table_[slot_of(seen_[i])] = static_cast<uint32_t>(i + 1);
  }
  const size_t slot = slot_of(configuration);
  if (seen_table_[slot] != 0) return false;
  seen_.push_back(configuration);
  seen_table_[slot] = static_cast<uint32_t>(seen_.size());
  return true;
}

void Machine::follow(const Configuration& configuration) {
  const State& state = automaton_.states[configuration.state];
  for (const Jump& jump : automaton_.jumps_of(state)) {
    if (!passes(jump.guard, jump.limit, configuration.count)) continue;
    if (jump.only_shallow && stacks_[configuration.frame].depth >= kMostFreeDepth) continue;
    const uint32_t count = counted(jump.guard, jump.limit, configuration.count, state);
    if (jump.return_to == kNoState) {
      work_.push_back({jump.target, count, configuration.frame});
    } else {
      const uint32_t frame = stacks_.push(configuration.frame, jump.return_to, count, jump.deeper);
      work_.push_back({jump.target, 0, frame});
    }
  }
}

void Machine::enter(const Configuration& configuration, std::vector<Configuration>& pool, Set& set) {
  work_.push_back(configuration);
  while (!work_.empty()) {
    const Configuration next = work_.back();
    work_.pop_back();
    if (!remember(next)) continue;
    const State& state = automaton_.states[next.state];
    if (state.edges_begin != state.edges_end && pool.size() - set.begin < kMostConfigurations) {
      pool.push_back(next);
    }
    follow(next);
    if (!state.final) continue;
    if (next.frame == 0) {
      set.at_bottom = true;
    } else {
      work_.push_back(return_from(next.frame));
    }
  }
}

Machine::Set Machine::close(const Configuration& configuration, std::vector<Configuration>& pool) {
  Set set{.begin = pool.size()};
  seen_.clear();
  enter(configuration, pool, set);
  set.end = pool.size();
  return set;
}

Machine::Set Machine::close(const std::vector<Configuration>& configurations,
                            std::vector<Configuration>& pool) {
  Set set{.begin = pool.size()};
  seen_.clear();
  for (const Configuration& configuration : configurations) enter(configuration, pool, set);
  set.end = pool.size();
  return set;
}

/// The usual step inside a string: one way at most, to a state without jumps. False if it is another one.
bool Machine::step_alone(const Configuration at, uint8_t byte, std::vector<Configuration>& pool) const {
  const State& state = automaton_.states[at.state];
  const ByteEdge* taken = nullptr;
  for (const ByteEdge& edge : automaton_.edges_of(state)) {
    if (byte < edge.first || byte > edge.last) continue;
    if (taken != nullptr || !passes(edge.guard, edge.limit, at.count)) return false;
    taken = &edge;
  }
  if (taken == nullptr) return true;
  const State& target = automaton_.states[taken->target];
  if (target.final || target.jumps_begin != target.jumps_end) return false;
  pool.push_back({taken->target, counted(taken->guard, taken->limit, at.count, state), at.frame});
  return true;
}

Machine::Set Machine::step(Set from, uint8_t byte, std::vector<Configuration>& pool) {
  Set set{.begin = pool.size()};
  if (from.end - from.begin == 1 && step_alone(pool[from.begin], byte, pool)) {
    set.end = pool.size();
    return set;
  }
  seen_.clear();
  for (size_t i = from.begin; i < from.end; ++i) {
    const Configuration at = pool[i];
    const State& state = automaton_.states[at.state];
    for (const ByteEdge& edge : automaton_.edges_of(state)) {
      if (byte < edge.first || byte > edge.last || !passes(edge.guard, edge.limit, at.count)) continue;
      const Configuration next{edge.target, counted(edge.guard, edge.limit, at.count, state), at.frame};
      enter(next, pool, set);
    }
  }
  set.end = pool.size();
  return set;
}

}  // namespace ds4::grammar
