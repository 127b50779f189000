// Regular sets of strings of Unicode characters, as deterministic automata.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ds4::grammar {

inline constexpr uint32_t kLastCharacter = 0x10FFFF;
/// Larger automata are not made; the operations below return nothing instead.
inline constexpr size_t kMostDfaStates = 50000;

/// Edges of a state do not overlap and are in order. State 0 is the start.
struct Dfa {
  struct Edge {
    uint32_t first = 0, last = 0;  // characters
    uint32_t target = 0;
    bool operator==(const Edge&) const = default;
  };
  struct State {
    std::vector<Edge> edges;
    bool accepting = false;
  };
  std::vector<State> states;

  /// Precondition: `text` is UTF-8.
  bool matches(std::string_view text) const;
  /// No string belongs to it; states that lead nowhere have been taken away.
  bool empty() const { return states.empty(); }
};

/// A nondeterministic automaton to build one from. State 0 is the start.
struct Nfa {
  struct Edge {
    uint32_t first = 0, last = 0;
    uint32_t target = 0;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<uint32_t> jumps;  // without a character
    bool accepting = false;
  };
  std::vector<State> states{1};

  uint32_t add_state();
  /// Copies `dfa`; returns its start. Its accepting states accept.
  uint32_t add(const Dfa& dfa);
};

/// All operations leave away the states that lead nowhere.
std::optional<Dfa> determinize(const Nfa& nfa, size_t most_states = kMostDfaStates);
std::optional<Dfa> unite(std::span<const Dfa> parts);
std::optional<Dfa> intersect(const Dfa& a, const Dfa& b);
std::optional<Dfa> complement(const Dfa& dfa);  // over the characters up to kLastCharacter
/// The given strings (UTF-8).
std::optional<Dfa> one_of(std::span<const std::string> texts);
/// Strings of `least` to `most` characters (kUnlimited: no upper end).
std::optional<Dfa> of_length(uint32_t least, uint32_t most);
Dfa any_string();

}  // namespace ds4::grammar
