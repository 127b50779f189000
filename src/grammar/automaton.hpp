// The compiled form of a grammar: states with byte edges, jumps and calls, each rule with one counter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace ds4::grammar {

inline constexpr uint32_t kNoState = 0xFFFFFFFF;
inline constexpr uint32_t kUnlimited = 0xFFFFFFFF;
/// Containers inside one another in JSON of free form.
inline constexpr uint32_t kMostFreeDepth = 64;

/// What a transition asks of the counter.
enum class Guard : uint8_t {
  none,
  below,     // count < limit, and counts one more
  at_least,  // count >= limit
};

/// Takes one byte in [first, last].
struct ByteEdge {
  uint32_t target = 0;
  uint32_t limit = 0;
  uint8_t first = 0, last = 0;
  Guard guard = Guard::none;
};

/// Takes no byte. A call runs the rule that begins at `target`, with a counter of its own, and goes on at
/// `return_to`; a jump (return_to == kNoState) stays in the rule, so that the end of the target is its end.
struct Jump {
  uint32_t target = 0;
  uint32_t return_to = kNoState;
  uint32_t limit = 0;
  Guard guard = Guard::none;
  bool deeper = false;        // a call for the members of a container
  bool only_shallow = false;  // allowed inside fewer than kMostFreeDepth containers
};

struct State {
  uint32_t edges_begin = 0, edges_end = 0;
  uint32_t jumps_begin = 0, jumps_end = 0;
  /// The counter of the rule matters from below `least` on, and up to `most`; between them every guard holds.
  uint32_t least = 0, most = kUnlimited;
  bool final = false;         // the rule may end here
  uint32_t bytes_to_end = 0;  // of the rule, at least: as if no guard mattered
};

/// Every state can reach the end of its rule, and no cycle takes no byte.
struct Automaton {
  std::vector<State> states;
  std::vector<ByteEdge> edges;
  std::vector<Jump> jumps;
  uint32_t start = 0;
  bool uses_dsml = false;  // the mark of tool markup may be written

  std::span<const ByteEdge> edges_of(const State& state) const {
    return {edges.data() + state.edges_begin, state.edges_end - state.edges_begin};
  }
  std::span<const Jump> jumps_of(const State& state) const {
    return {jumps.data() + state.jumps_begin, state.jumps_end - state.jumps_begin};
  }
};

/// Collects states. Past `most_states` it goes on handing out numbers but keeps nothing; see full().
class AutomatonBuilder {
 public:
  explicit AutomatonBuilder(size_t most_states) : most_states_(most_states) {}

  uint32_t add_state();
  void set_final(uint32_t state) { drafts_[state].final = true; }
  void set_counter_range(uint32_t state, uint32_t least, uint32_t most);
  void add_edge(uint32_t from, ByteEdge edge) { drafts_[from].edges.push_back(edge); }
  void add_jump(uint32_t from, Jump jump) { drafts_[from].jumps.push_back(jump); }

  void add_byte(uint32_t from, char byte, uint32_t target);
  /// The state behind the text, reached from `from` through states of its own.
  uint32_t add_text(uint32_t from, std::string_view text);
  /// The same, ending in `target`. Precondition: the text is not empty.
  void add_text_to(uint32_t from, std::string_view text, uint32_t target);
  void call(uint32_t from, uint32_t rule, uint32_t return_to) {
    add_jump(from, {.target = rule, .return_to = return_to});
  }

  bool full() const { return full_; }
  size_t size() const { return drafts_.size(); }

  /// Without what cannot reach an end. Null if nothing at all can.
  std::unique_ptr<Automaton> finish(uint32_t start) const;

 private:
  struct Draft {
    std::vector<ByteEdge> edges;
    std::vector<Jump> jumps;
    uint32_t least = 0, most = kUnlimited;
    bool final = false;
  };

  /// By state; kNoState: there is no way to an end.
  std::vector<uint32_t> bytes_to_end() const;

  size_t most_states_;
  bool full_ = false;
  std::vector<Draft> drafts_;
};

}  // namespace ds4::grammar
