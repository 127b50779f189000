#include "grammar/automaton.hpp"

#include <functional>
#include <queue>
#include <utility>

namespace ds4::grammar {

uint32_t AutomatonBuilder::add_state() {
  if (drafts_.size() >= most_states_) {
    full_ = true;
    drafts_.back() = {};
    return static_cast<uint32_t>(drafts_.size() - 1);
  }
  drafts_.emplace_back();
  return static_cast<uint32_t>(drafts_.size() - 1);
}

void AutomatonBuilder::set_counter_range(uint32_t state, uint32_t least, uint32_t most) {
  drafts_[state].least = least;
  drafts_[state].most = most;
}

void AutomatonBuilder::add_byte(uint32_t from, char byte, uint32_t target) {
  const auto value = static_cast<uint8_t>(byte);
  add_edge(from, {.target = target, .first = value, .last = value});
}

uint32_t AutomatonBuilder::add_text(uint32_t from, std::string_view text) {
  for (const char byte : text) {
    const uint32_t next = add_state();
    add_byte(from, byte, next);
    from = next;
  }
  return from;
}

void AutomatonBuilder::add_text_to(uint32_t from, std::string_view text, uint32_t target) {
  from = add_text(from, text.substr(0, text.size() - 1));
  add_byte(from, text.back(), target);
}

std::vector<uint32_t> AutomatonBuilder::bytes_to_end() const {
  // Knuth's generalisation of Dijkstra's algorithm: a call takes what its rule and the way behind it take.
  struct Source {
    uint32_t state = 0;
    uint32_t other = kNoState;  // of a call: where its rule begins or where it returns to
    uint32_t bytes = 0;
  };
  std::vector<std::vector<Source>> sources(drafts_.size());
  std::vector<uint32_t> distances(drafts_.size(), kNoState);
  using Reached = std::pair<uint32_t, uint32_t>;  // distance, state
  std::priority_queue<Reached, std::vector<Reached>, std::greater<>> work;
  const auto reach = [&](uint32_t state, uint64_t distance) {
    if (distance >= distances[state]) return;
    distances[state] = static_cast<uint32_t>(distance);
    work.emplace(distances[state], state);
  };
  for (uint32_t state = 0; state < drafts_.size(); ++state) {
    for (const ByteEdge& edge : drafts_[state].edges) sources[edge.target].push_back({state, kNoState, 1});
    for (const Jump& jump : drafts_[state].jumps) {
      sources[jump.target].push_back({state, jump.return_to, 0});
      if (jump.return_to != kNoState) sources[jump.return_to].push_back({state, jump.target, 0});
    }
    if (drafts_[state].final) reach(state, 0);
  }
  while (!work.empty()) {
    const auto [distance, reached] = work.top();
    work.pop();
    if (distance > distances[reached]) continue;
    for (const Source& source : sources[reached]) {
      const uint64_t other = source.other == kNoState ? 0 : distances[source.other];
      if (other != kNoState) reach(source.state, distance + other + source.bytes);
    }
  }
  return distances;
}

std::unique_ptr<Automaton> AutomatonBuilder::finish(uint32_t start) const {
  const std::vector<uint32_t> distances = bytes_to_end();
  const auto ends = [&](uint32_t state) { return distances[state] != kNoState; };
  if (full_ || !ends(start)) return nullptr;
  auto automaton = std::make_unique<Automaton>();
  automaton->start = start;
  automaton->states.reserve(drafts_.size());
  for (size_t i = 0; i < drafts_.size(); ++i) {
    const Draft& draft = drafts_[i];
    State state{.edges_begin = static_cast<uint32_t>(automaton->edges.size()),
                .jumps_begin = static_cast<uint32_t>(automaton->jumps.size()),
                .least = draft.least,
                .most = draft.most,
                .final = draft.final,
                .bytes_to_end = distances[i]};
    for (const ByteEdge& edge : draft.edges) {
      if (ends(edge.target)) automaton->edges.push_back(edge);
    }
    for (const Jump& jump : draft.jumps) {
      if (!ends(jump.target) || (jump.return_to != kNoState && !ends(jump.return_to))) continue;
      automaton->jumps.push_back(jump);
    }
    state.edges_end = static_cast<uint32_t>(automaton->edges.size());
    state.jumps_end = static_cast<uint32_t>(automaton->jumps.size());
    automaton->states.push_back(state);
  }
  return automaton;
}

}  // namespace ds4::grammar
