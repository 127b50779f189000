#include "grammar/shortest_end.hpp"

#include <algorithm>
#include <queue>
#include <set>
#include <span>
#include <utility>

#include "grammar/machine.hpp"

namespace ds4::grammar {
namespace {

/// Configurations that are looked at, about a microsecond each.
constexpr size_t kMostSteps = 5000;
constexpr uint32_t kNoNode = 0xFFFFFFFF;
/// A guess at an item of an array.
constexpr uint64_t kBytesPerCount = 16;

bool is_white_space(const ByteEdge& edge) {
  return edge.first == edge.last &&
         (edge.first == ' ' || edge.first == '\t' || edge.first == '\n' || edge.first == '\r');
}

/// A* over single configurations. Where a counter asks for more, the estimate may be too large, which leads
/// straight on instead of over everything that is shorter so far.
class Search {
 public:
  Search(const Automaton& automaton, Stacks stacks, size_t most_bytes)
      : automaton_(automaton),
        stacks_(std::move(stacks)),
        machine_(automaton_, stacks_),
        most_bytes_(most_bytes) {}

  std::optional<std::string> run(const std::vector<Configuration>& configurations) {
    add_set(configurations, kNoNode, 0, 0);
    for (size_t steps = 0; !open_.empty() && steps < kMostSteps; ++steps) {
      const uint32_t node = open_.top().node;
      if (nodes_[node].at_end) return text_to(node);
      open_.pop();
      expand(node);
    }
    return std::nullopt;
  }

 private:
  struct Node {
    Configuration at;
    uint32_t before = kNoNode;
    uint32_t written = 0;
    uint8_t byte = 0;
    bool at_end = false;
  };
  struct Open {
    uint64_t total = 0;  // bytes of the whole end, estimated
    uint32_t written = 0;
    uint32_t node = 0;
    bool operator<(const Open& other) const {
      return std::pair(total, other.written) > std::pair(other.total, written);
    }
  };

  struct Left {
    uint64_t bytes = 0;   // at least, as if no guard mattered
    uint64_t counts = 0;  // characters and items that guards still ask for
  };
  Left left(const Configuration& at) const {
    Left sum;
    const auto add_state = [&](uint32_t index, uint32_t count) {
      const State& state = automaton_.states[index];
      sum.bytes += state.bytes_to_end;
      if (count < state.least) sum.counts += state.least - count;
    };
    add_state(at.state, at.count);
    for (uint32_t frame = at.frame; frame != 0; frame = stacks_[frame].parent) {
      add_state(stacks_[frame].state, stacks_[frame].count);
    }
    return sum;
  }

  void add(const Configuration& at, uint32_t before, uint32_t written, uint8_t byte) {
    const auto [bytes, counts] = left(at);
    if (written + bytes + counts > most_bytes_ || !seen_.insert(at).second) return;
    push({.at = at, .before = before, .written = written, .byte = byte},
         written + bytes + kBytesPerCount * counts);
  }

  void push(const Node& node, uint64_t total) {
    open_.push({total, node.written, static_cast<uint32_t>(nodes_.size())});
    nodes_.push_back(node);
  }

  bool takes_white_space_only(const Configuration& at) const {
    const auto edges = automaton_.edges_of(automaton_.states[at.state]);
    return std::all_of(edges.begin(), edges.end(), is_white_space);
  }

  /// Configurations in one place. Those that wait for white space lead nowhere that the others do not.
  void add_set(std::span<const Configuration> set, uint32_t before, uint32_t written, uint8_t byte) {
    const bool needed = std::all_of(set.begin(), set.end(),
                                    [&](const Configuration& at) { return takes_white_space_only(at); });
    for (const Configuration& at : set) {
      if (needed || !takes_white_space_only(at)) add(at, before, written, byte);
    }
  }

  void expand(uint32_t node) {
    const Node from = nodes_[node];
    const bool white_space = takes_white_space_only(from.at);
    for (const ByteEdge& edge : automaton_.edges_of(automaton_.states[from.at.state])) {
      if (is_white_space(edge) != white_space) continue;
      std::vector<Configuration> pool{from.at};
      const Machine::Set next = machine_.step({.begin = 0, .end = 1}, edge.first, pool);
      add_set(std::span(pool).subspan(next.begin, next.end - next.begin), node, from.written + 1, edge.first);
      if (next.at_bottom && from.written < most_bytes_) {
        push({.before = node, .written = from.written + 1, .byte = edge.first, .at_end = true},
             from.written + 1);
      }
    }
  }

  std::string text_to(uint32_t node) const {
    std::string text;
    for (; nodes_[node].before != kNoNode; node = nodes_[node].before) {
      text.push_back(static_cast<char>(nodes_[node].byte));
    }
    std::reverse(text.begin(), text.end());
    return text;
  }

  const Automaton& automaton_;
  Stacks stacks_;
  Machine machine_;
  size_t most_bytes_;
  std::vector<Node> nodes_;
  std::priority_queue<Open> open_;
  std::set<Configuration> seen_;
};

}  // namespace

std::optional<std::string> find_shortest_end(const Automaton& automaton, Stacks stacks,
                                             const std::vector<Configuration>& configurations,
                                             size_t most_bytes) {
  return Search(automaton, std::move(stacks), most_bytes).run(configurations);
}

}  // namespace ds4::grammar
