// Masks over the vocabulary, and what of them is worth keeping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "grammar/automaton.hpp"
#include "grammar/machine.hpp"
#include "grammar/stacks.hpp"
#include "grammar/vocabulary_index.hpp"

namespace ds4::grammar {

/// The tokens that a state allows whatever it returns to, and the places in the vocabulary's tree where its
/// rule may end, so that what it returns to decides about the tokens behind them.
struct StateMask {
  std::vector<uint64_t> allowed;
  std::vector<uint32_t> rule_ends;
};

/// Masks of states that allow a large part of the vocabulary, such as the inside of a string. Safe to use
/// from several threads.
class MaskCache {
 public:
  using Key = std::pair<uint32_t, uint32_t>;  // state, counter

  std::shared_ptr<const StateMask> find(Key key) const;
  void insert(Key key, std::shared_ptr<const StateMask> mask);

 private:
  static constexpr size_t kMostMasks = 512;  // 16 KB each for 129,280 tokens

  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<const StateMask>> masks_;
};

/// Makes the mask of one set of configurations.
class MaskMaker {
 public:
  /// `stacks` is a copy that the maker may add to.
  MaskMaker(const Automaton& automaton, const VocabularyIndex& index, MaskCache& cache, Stacks stacks);

  /// Adds the tokens that these allow.
  void run(std::vector<Configuration> configurations, std::span<uint64_t> mask);

 private:
  /// Adds the tokens behind `root` that `set` (at the beginning of the pool) allows; notes in `rule_ends`
  /// where the rule of frame 0 may end.
  void walk(uint32_t root, Machine::Set set, std::span<uint64_t> mask, std::vector<uint32_t>* rule_ends);
  std::shared_ptr<const StateMask> mask_of(uint32_t state, uint32_t count);
  void add_group(std::span<const Configuration> group, uint32_t count, std::span<uint64_t> mask);
  uint32_t relevant_count(const Configuration& configuration) const;

  const Automaton& automaton_;
  const VocabularyIndex& index_;
  MaskCache& cache_;
  Stacks stacks_;
  Machine machine_;
  std::vector<Configuration> pool_;
  std::vector<Machine::Set> levels_;  // sets of the nodes from the root of a walk to the current one
  std::vector<size_t> stack_sizes_;   // of the same nodes
  size_t visited_ = 0;
};

}  // namespace ds4::grammar
