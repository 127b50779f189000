#include "grammar/shortest_end.hpp"

#include <algorithm>
#include <queue>
#include <set>
#include <utility>

#include "grammar/machine.hpp"

namespace ds4::grammar {
namespace {

/// Configurations that are looked at; a few microseconds each.
constexpr size_t kMostSteps = 20000;
constexpr uint32_t kNoNode = 0xFFFFFFFF;

bool is_white_space(const ByteEdge& edge) {
  return edge.first == edge.last &&
         (edge.first == ' ' || edge.first == '\t' || edge.first == '\n' || edge.first == '\r');
}

/// A* over single configurations. What is left to write is estimated as if no guard mattered, which is never
/// too much.
class Search {
 public:
  Search(const Automaton& automaton, Stacks stacks, size_t most_bytes)
      : automaton_(automaton),
        stacks_(std::move(stacks)),
        machine_(automaton_, stacks_),
        most_bytes_(most_bytes) {}

  std::optional<std::string> run(const std::vector<Configuration>& configurations) {
    for (const Configuration& configuration : configurations) add(configuration, kNoNode, 0, 0);
    for (size_t steps = 0; !open_.empty() && steps < kMostSteps; ++steps) {
      const uint32_t node = open_.top().node;
      if (nodes_[node].at_end) return text_to(node);
      open_.pop();
      // A step into white space leads nowhere that one without it does not lead as well.
      if (!expand(node, false)) expand(node, true);
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
    uint64_t total = 0;  // bytes of the whole end, at least
    uint32_t written = 0;
    uint32_t node = 0;
    bool operator<(const Open& other) const {
      return std::pair(total, other.written) > std::pair(other.total, written);
    }
  };

  uint64_t bytes_left(const Configuration& at) const {
    uint64_t bytes = automaton_.states[at.state].bytes_to_end;
    for (uint32_t frame = at.frame; frame != 0; frame = stacks_[frame].parent) {
      bytes += automaton_.states[stacks_[frame].state].bytes_to_end;
    }
    return bytes;
  }

  void add(const Configuration& at, uint32_t before, uint32_t written, uint8_t byte) {
    const uint64_t total = written + bytes_left(at);
    if (total > most_bytes_ || !seen_.insert(at).second) return;
    push({.at = at, .before = before, .written = written, .byte = byte}, total);
  }

  void push(const Node& node, uint64_t total) {
    open_.push({total, node.written, static_cast<uint32_t>(nodes_.size())});
    nodes_.push_back(node);
  }

  /// Whether any byte leads on.
  bool expand(uint32_t node, bool white_space) {
    const Node from = nodes_[node];
    bool any = false;
    for (const ByteEdge& edge : automaton_.edges_of(automaton_.states[from.at.state])) {
      if (is_white_space(edge) != white_space) continue;
      std::vector<Configuration> pool{from.at};
      const Machine::Set next = machine_.step({.begin = 0, .end = 1}, edge.first, pool);
      any = any || next.alive();
      for (size_t i = next.begin; i < next.end; ++i) add(pool[i], node, from.written + 1, edge.first);
      if (next.at_bottom && from.written < most_bytes_) {
        push({.before = node, .written = from.written + 1, .byte = edge.first, .at_end = true},
             from.written + 1);
      }
    }
    return any;
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
