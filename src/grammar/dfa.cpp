#include "grammar/dfa.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "grammar/automaton.hpp"
#include "text/utf8.hpp"

namespace ds4::grammar {
namespace {

/// Comparisons that one determinization may need: about a tenth of a second.
constexpr size_t kMostWork = 20'000'000;

/// Adjacent edges to the same state become one.
void add_edge(std::vector<Dfa::Edge>& edges, Dfa::Edge edge) {
  if (!edges.empty() && edges.back().target == edge.target && edges.back().last + 1 == edge.first) {
    edges.back().last = edge.last;
  } else {
    edges.push_back(edge);
  }
}

/// Takes away states from which no accepting one is reached. All states must be reachable.
Dfa trim(Dfa dfa) {
  std::vector<std::vector<uint32_t>> sources(dfa.states.size());
  std::vector<uint32_t> work;
  std::vector<bool> useful(dfa.states.size(), false);
  for (uint32_t state = 0; state < dfa.states.size(); ++state) {
    for (const Dfa::Edge& edge : dfa.states[state].edges) sources[edge.target].push_back(state);
    if (!dfa.states[state].accepting) continue;
    useful[state] = true;
    work.push_back(state);
  }
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    for (const uint32_t source : sources[state]) {
      if (useful[source]) continue;
      useful[source] = true;
      work.push_back(source);
    }
  }
  if (dfa.states.empty() || !useful[0]) return {};
  std::vector<uint32_t> renamed(dfa.states.size(), kNoState);
  uint32_t next = 0;
  for (uint32_t state = 0; state < dfa.states.size(); ++state) {
    if (useful[state]) renamed[state] = next++;
  }
  Dfa result;
  for (uint32_t state = 0; state < dfa.states.size(); ++state) {
    if (!useful[state]) continue;
    Dfa::State kept{.edges = {}, .accepting = dfa.states[state].accepting};
    for (const Dfa::Edge& edge : dfa.states[state].edges) {
      if (useful[edge.target]) add_edge(kept.edges, {edge.first, edge.last, renamed[edge.target]});
    }
    result.states.push_back(std::move(kept));
  }
  return result;
}

/// Numbers the combinations of states that turn up, and hands them out until all are done.
template <class Key>
class Numbering {
 public:
  uint32_t number_of(Key key) {
    const auto [place, is_new] = numbers_.try_emplace(std::move(key), static_cast<uint32_t>(keys_.size()));
    if (is_new) keys_.push_back(&place->first);
    return place->second;
  }
  size_t size() const { return keys_.size(); }
  const Key& operator[](size_t number) const { return *keys_[number]; }

 private:
  std::map<Key, uint32_t> numbers_;
  std::vector<const Key*> keys_;
};

void close(const Nfa& nfa, std::vector<uint32_t>& set) {
  std::vector<uint32_t> work = set;
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    for (const uint32_t target : nfa.states[state].jumps) {
      const auto place = std::lower_bound(set.begin(), set.end(), target);
      if (place != set.end() && *place == target) continue;
      set.insert(place, target);
      work.push_back(target);
    }
  }
}

std::vector<Dfa::Edge> completed(const std::vector<Dfa::Edge>& edges, uint32_t sink) {
  std::vector<Dfa::Edge> result;
  uint32_t next = 0;
  for (const Dfa::Edge& edge : edges) {
    if (edge.first > next) add_edge(result, {next, edge.first - 1, sink});
    add_edge(result, edge);
    next = edge.last + 1;
  }
  if (next <= kLastCharacter) add_edge(result, {next, kLastCharacter, sink});
  return result;
}

}  // namespace

bool Dfa::matches(std::string_view text) const {
  if (states.empty()) return false;
  uint32_t state = 0;
  for (size_t i = 0; i < text.size();) {
    const text::CodePoint character = text::code_point_at(text, i);
    i += character.length_bytes;
    const auto& edges = states[state].edges;
    const auto edge = std::find_if(edges.begin(), edges.end(), [&](const Edge& candidate) {
      return candidate.first <= character.value && character.value <= candidate.last;
    });
    if (edge == edges.end()) return false;
    state = edge->target;
  }
  return states[state].accepting;
}

uint32_t Nfa::add_state() {
  states.emplace_back();
  return static_cast<uint32_t>(states.size() - 1);
}

uint32_t Nfa::add(const Dfa& dfa) {
  const auto base = static_cast<uint32_t>(states.size());
  for (const Dfa::State& state : dfa.states) {
    State& copy = states.emplace_back();
    copy.accepting = state.accepting;
    for (const Dfa::Edge& edge : state.edges) {
      copy.edges.push_back({edge.first, edge.last, base + edge.target});
    }
  }
  return base;
}

std::optional<Dfa> determinize(const Nfa& nfa, size_t most_states) {
  Numbering<std::vector<uint32_t>> sets;
  std::vector<uint32_t> start{0};
  close(nfa, start);
  sets.number_of(std::move(start));
  Dfa dfa;
  size_t work = 0;
  for (size_t number = 0; number < sets.size(); ++number) {
    if (sets.size() > most_states) return std::nullopt;
    Dfa::State state;
    std::vector<Nfa::Edge> edges;
    for (const uint32_t member : sets[number]) {
      state.accepting = state.accepting || nfa.states[member].accepting;
      edges.insert(edges.end(), nfa.states[member].edges.begin(), nfa.states[member].edges.end());
    }
    std::vector<uint32_t> borders;
    for (const Nfa::Edge& edge : edges) {
      borders.push_back(edge.first);
      borders.push_back(edge.last + 1);
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    work += borders.size() * (edges.size() + 1);
    if (work > kMostWork) return std::nullopt;
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      std::vector<uint32_t> targets;
      for (const Nfa::Edge& edge : edges) {
        if (edge.first <= borders[i] && borders[i] <= edge.last) targets.push_back(edge.target);
      }
      if (targets.empty()) continue;
      close(nfa, targets);
      work += targets.size();
      add_edge(state.edges, {borders[i], borders[i + 1] - 1, sets.number_of(std::move(targets))});
    }
    dfa.states.push_back(std::move(state));
  }
  return trim(std::move(dfa));
}

std::optional<Dfa> unite(std::span<const Dfa> parts) {
  if (parts.size() == 1) return parts[0];
  Nfa nfa;
  for (const Dfa& part : parts) {
    if (part.empty()) continue;
    const uint32_t start = nfa.add(part);
    nfa.states[0].jumps.push_back(start);
  }
  return determinize(nfa);
}

std::optional<Dfa> intersect(const Dfa& a, const Dfa& b) {
  if (a.empty() || b.empty()) return Dfa{};
  Numbering<std::pair<uint32_t, uint32_t>> pairs;
  pairs.number_of({0, 0});
  Dfa dfa;
  for (size_t number = 0; number < pairs.size(); ++number) {
    if (pairs.size() > kMostDfaStates) return std::nullopt;
    const auto [left, right] = pairs[number];
    Dfa::State state;
    state.accepting = a.states[left].accepting && b.states[right].accepting;
    const auto& right_edges = b.states[right].edges;
    auto other = right_edges.begin();
    for (const Dfa::Edge& edge : a.states[left].edges) {
      while (other != right_edges.end() && other->last < edge.first) ++other;
      for (auto overlap = other; overlap != right_edges.end() && overlap->first <= edge.last; ++overlap) {
        add_edge(state.edges, {std::max(edge.first, overlap->first), std::min(edge.last, overlap->last),
                               pairs.number_of({edge.target, overlap->target})});
      }
    }
    dfa.states.push_back(std::move(state));
  }
  return trim(std::move(dfa));
}

std::optional<Dfa> complement(const Dfa& dfa) {
  if (dfa.empty()) return any_string();
  Dfa result = dfa;
  const auto sink = static_cast<uint32_t>(result.states.size());
  result.states.push_back({.edges = {{0, kLastCharacter, sink}}, .accepting = false});
  for (Dfa::State& state : result.states) {
    state.edges = completed(state.edges, sink);
    state.accepting = !state.accepting;
  }
  return trim(std::move(result));
}

std::optional<Dfa> one_of(std::span<const std::string> texts) {
  Dfa dfa;
  dfa.states.emplace_back();
  std::vector<std::map<uint32_t, uint32_t>> children(1);
  for (const std::string& text : texts) {
    uint32_t state = 0;
    for (size_t i = 0; i < text.size();) {
      const text::CodePoint character = text::code_point_at(text, i);
      i += character.length_bytes;
      const auto [child, is_new] =
          children[state].try_emplace(character.value, static_cast<uint32_t>(children.size()));
      state = child->second;
      if (!is_new) continue;
      if (children.size() > kMostDfaStates * 10) return std::nullopt;
      children.emplace_back();
      dfa.states.emplace_back();
    }
    dfa.states[state].accepting = true;
  }
  for (size_t state = 0; state < children.size(); ++state) {
    for (const auto& [character, child] : children[state]) {
      dfa.states[state].edges.push_back({character, character, child});
    }
  }
  return trim(std::move(dfa));
}

std::optional<Dfa> of_length(uint32_t least, uint32_t most) {
  const uint32_t last = most == kUnlimited ? least : most;
  if (last >= kMostDfaStates) return std::nullopt;
  Dfa dfa;
  for (uint32_t length = 0; length <= last; ++length) {
    Dfa::State& state = dfa.states.emplace_back();
    state.accepting = length >= least;
    if (length < last) state.edges.push_back({0, kLastCharacter, length + 1});
  }
  if (most == kUnlimited) dfa.states.back().edges.push_back({0, kLastCharacter, last});
  return trim(std::move(dfa));
}

Dfa any_string() {
  return Dfa{{Dfa::State{.edges = {{0, kLastCharacter, 0}}, .accepting = true}}};
}

}  // namespace ds4::grammar
