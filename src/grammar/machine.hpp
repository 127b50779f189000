// Runs an automaton: from a set of configurations, over a byte, to the next set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "grammar/automaton.hpp"
#include "grammar/stacks.hpp"

namespace ds4::grammar {

/// Sets stand one behind another in a pool: a step reads one and appends the next. A set holds configurations
/// that can take a byte; jumps, calls and returns have been followed. One of more than kMostConfigurations
/// loses the rest, which forbids some texts but never leads to a dead end.
class Machine {
 public:
  static constexpr size_t kMostConfigurations = 1024;

  Machine(const Automaton& automaton, Stacks& stacks) : automaton_(automaton), stacks_(stacks) {}

  struct Set {
    size_t begin = 0, end = 0;  // in the pool
    bool at_bottom = false;     // the rule of frame 0 may end here
    bool alive() const { return at_bottom || begin < end; }
  };

  Set close(const Configuration& configuration, std::vector<Configuration>& pool);
  Set close(const std::vector<Configuration>& configurations, std::vector<Configuration>& pool);
  Set step(Set from, uint8_t byte, std::vector<Configuration>& pool);

  /// What a finished rule goes on with. Precondition: the frame is not 0.
  Configuration return_from(uint32_t frame) const {
    const Frame& top = stacks_[frame];
    return {.state = top.state, .count = top.count, .frame = top.parent};
  }

 private:
  static bool passes(Guard guard, uint32_t limit, uint32_t count) {
    return guard == Guard::none || (guard == Guard::below ? count < limit : count >= limit);
  }
  /// Behind a transition. Where there is no upper limit, counting stops when all lower ones are reached.
  static uint32_t counted(Guard guard, uint32_t limit, uint32_t count, const State& from) {
    if (guard != Guard::below || (limit == kUnlimited && count >= from.least)) return count;
    return count + 1;
  }

  void enter(const Configuration& configuration, std::vector<Configuration>& pool, Set& set);
  void follow(const Configuration& configuration);
  bool step_alone(Configuration at, uint8_t byte, std::vector<Configuration>& pool) const;
  bool remember(const Configuration& configuration);

  const Automaton& automaton_;
  Stacks& stacks_;
  std::vector<Configuration> work_;
  std::vector<Configuration> seen_;   // all that were entered on the way to the set being made
  std::vector<uint32_t> seen_table_;  // open addressing over seen_; 0 is free, else index + 1
};

}  // namespace ds4::grammar
