#include "grammar/mask_cache.hpp"

#include <algorithm>
#include <tuple>

namespace ds4::grammar {
namespace {

/// Walks that visit fewer nodes are as quick as a look into the cache is worth.
constexpr size_t kWorthKeeping = 2000;
/// A schema made to be slow gets no more time than this per mask: what is left out is forbidden.
constexpr size_t kMostVisited = 4'000'000;
/// Stands for all values of a counter at which no guard can matter within one token.
constexpr uint32_t kAnyCount = kUnlimited;

}  // namespace

std::shared_ptr<const StateMask> MaskCache::find(Key key) const {
  const std::lock_guard lock(mutex_);
  const auto place = masks_.find(key);
  return place == masks_.end() ? nullptr : place->second;
}

void MaskCache::insert(Key key, std::shared_ptr<const StateMask> mask) {
  const std::lock_guard lock(mutex_);
  if (masks_.size() >= kMostMasks) masks_.clear();
  masks_[key] = std::move(mask);
}

MaskMaker::MaskMaker(const Automaton& automaton, const VocabularyIndex& index, MaskCache& cache,
                     Stacks stacks)
    : automaton_(automaton),
      index_(index),
      cache_(cache),
      stacks_(std::move(stacks)),
      machine_(automaton_, stacks_) {}

uint32_t MaskMaker::relevant_count(const Configuration& configuration) const {
  const State& state = automaton_.states[configuration.state];
  const bool low = configuration.count < state.least;
  const bool high = state.most != kUnlimited && configuration.count + index_.most_characters() > state.most;
  return low || high ? configuration.count : kAnyCount;
}

void MaskMaker::run(std::vector<Configuration> configurations, std::span<uint64_t> mask) {
  const auto key = [&](const Configuration& configuration) {
    return std::tuple(configuration.state, relevant_count(configuration));
  };
  std::stable_sort(configurations.begin(), configurations.end(),
                   [&](const Configuration& a, const Configuration& b) { return key(a) < key(b); });
  for (size_t begin = 0; begin < configurations.size() && visited_ < kMostVisited;) {
    size_t end = begin + 1;
    while (end < configurations.size() && key(configurations[end]) == key(configurations[begin])) ++end;
    add_group(std::span(configurations).subspan(begin, end - begin), relevant_count(configurations[begin]),
              mask);
    begin = end;
  }
}

void MaskMaker::add_group(std::span<const Configuration> group, uint32_t count, std::span<uint64_t> mask) {
  std::vector<Configuration> returns;
  bool shallow = false;
  for (const Configuration& configuration : group) {
    if (stacks_[configuration.frame].depth + index_.most_openings() >= kMostFreeDepth) {
      // The limit of depth may be reached within a token, so the real stack counts.
      pool_.clear();
      walk(0, machine_.close(configuration, pool_), mask, nullptr);
      continue;
    }
    shallow = true;
    if (configuration.frame != 0) returns.push_back(machine_.return_from(configuration.frame));
  }
  if (!shallow) return;
  const Configuration& first = group.front();
  const std::shared_ptr<const StateMask> own = mask_of(first.state, count == kAnyCount ? first.count : count);
  for (size_t word = 0; word < mask.size(); ++word) mask[word] |= own->allowed[word];
  if (returns.empty() || own->rule_ends.empty()) return;
  pool_.clear();
  const Machine::Set behind = machine_.close(returns, pool_);
  for (const uint32_t root : own->rule_ends) {
    pool_.resize(behind.end);
    walk(root, behind, mask, nullptr);
  }
}

std::shared_ptr<const StateMask> MaskMaker::mask_of(uint32_t state, uint32_t count) {
  const Configuration alone{.state = state, .count = count, .frame = 0};
  const MaskCache::Key key{state, relevant_count(alone)};
  if (auto known = cache_.find(key)) return known;
  auto made = std::make_shared<StateMask>();
  made->allowed.assign(index_.mask_words(), 0);
  pool_.assign(1, alone);
  const size_t before = visited_;
  walk(0, {.begin = 0, .end = 1}, made->allowed, &made->rule_ends);
  if (visited_ - before > kWorthKeeping) cache_.insert(key, made);
  return made;
}

void MaskMaker::walk(uint32_t root, Machine::Set set, std::span<uint64_t> mask,
                     std::vector<uint32_t>* rule_ends) {
  const std::span<const VocabularyIndex::Node> nodes = index_.nodes();
  const std::span<const Token> tokens = index_.tokens();
  const size_t base_depth = nodes[root].depth;
  const size_t stack_size = stacks_.size();
  levels_.assign(1, set);
  stack_sizes_.assign(1, stack_size);
  for (uint32_t node = root + 1; node < nodes[root].end;) {
    const size_t depth = nodes[node].depth - base_depth;
    ++visited_;
    levels_.resize(depth);
    stack_sizes_.resize(depth);
    pool_.resize(levels_.back().end);
    stacks_.shrink(stack_sizes_.back());
    const Machine::Set next = machine_.step(levels_.back(), nodes[node].byte, pool_);
    if (!next.alive()) {
      node = nodes[node].end;
      continue;
    }
    for (uint32_t i = nodes[node].tokens_begin; i < nodes[node + 1].tokens_begin; ++i) {
      const auto token = static_cast<size_t>(tokens[i]);
      mask[token / 64] |= uint64_t{1} << (token % 64);
    }
    if (next.at_bottom && rule_ends != nullptr) rule_ends->push_back(node);
    if (next.begin == next.end) {
      node = nodes[node].end;
      continue;
    }
    levels_.push_back(next);
    stack_sizes_.push_back(stacks_.size());
    ++node;
  }
  stacks_.shrink(stack_size);
}

}  // namespace ds4::grammar
