#include "grammar/automaton.hpp"

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

std::vector<bool> AutomatonBuilder::states_with_an_end() const {
  // Reverse edges; a call needs both an end of its rule and one behind it, so both lead back to the caller.
  std::vector<std::vector<uint32_t>> sources(drafts_.size());
  std::vector<bool> ends(drafts_.size(), false);
  std::vector<uint32_t> work;
  for (uint32_t state = 0; state < drafts_.size(); ++state) {
    for (const ByteEdge& edge : drafts_[state].edges) sources[edge.target].push_back(state);
    for (const Jump& jump : drafts_[state].jumps) {
      sources[jump.target].push_back(state);
      if (jump.return_to != kNoState) sources[jump.return_to].push_back(state);
    }
    if (!drafts_[state].final) continue;
    ends[state] = true;
    work.push_back(state);
  }
  const auto can_end = [&](const Draft& draft) {
    for (const ByteEdge& edge : draft.edges) {
      if (ends[edge.target]) return true;
    }
    for (const Jump& jump : draft.jumps) {
      if (ends[jump.target] && (jump.return_to == kNoState || ends[jump.return_to])) return true;
    }
    return false;
  };
  while (!work.empty()) {
    const uint32_t reached = work.back();
    work.pop_back();
    for (const uint32_t source : sources[reached]) {
      if (ends[source] || !can_end(drafts_[source])) continue;
      ends[source] = true;
      work.push_back(source);
    }
  }
  return ends;
}

std::unique_ptr<Automaton> AutomatonBuilder::finish(uint32_t start) const {
  const std::vector<bool> ends = states_with_an_end();
  if (full_ || !ends[start]) return nullptr;
  auto automaton = std::make_unique<Automaton>();
  automaton->start = start;
  automaton->states.reserve(drafts_.size());
  for (const Draft& draft : drafts_) {
    State state{.edges_begin = static_cast<uint32_t>(automaton->edges.size()),
                .jumps_begin = static_cast<uint32_t>(automaton->jumps.size()),
                .least = draft.least,
                .most = draft.most,
                .final = draft.final};
    for (const ByteEdge& edge : draft.edges) {
      if (ends[edge.target]) automaton->edges.push_back(edge);
    }
    for (const Jump& jump : draft.jumps) {
      if (!ends[jump.target] || (jump.return_to != kNoState && !ends[jump.return_to])) continue;
      automaton->jumps.push_back(jump);
    }
    state.edges_end = static_cast<uint32_t>(automaton->edges.size());
    state.jumps_end = static_cast<uint32_t>(automaton->jumps.size());
    automaton->states.push_back(state);
  }
  return automaton;
}

}  // namespace ds4::grammar
