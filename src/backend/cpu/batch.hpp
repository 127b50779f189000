// What one forward pass works on: rows of tokens, each belonging to a sequence at a position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cpu/rope.hpp"
#include "backend/cpu/sequence_state.hpp"
#include "ds4/token.hpp"

namespace ds4::cpu {

/// Consecutive tokens of one sequence; rows [first_row, first_row + count) of the batch.
struct Segment {
  SequenceState* state = nullptr;
  uint64_t start = 0;  // position of the first token
  size_t first_row = 0;
  size_t count = 0;
  SteeringScales steering;
};

/// A prefill chunk is one segment, a decode batch has a segment of one row for each sequence.
struct Batch {
  std::vector<Token> tokens;
  std::vector<Segment> segments;

  struct Row {
    uint32_t segment = 0;
    uint64_t position = 0;
  };
  std::vector<Row> rows;

  size_t size() const { return tokens.size(); }
  void add(SequenceState& state, uint64_t start, std::span<const Token> new_tokens,
           SteeringScales steering = {});
};

inline void Batch::add(SequenceState& state, uint64_t start, std::span<const Token> new_tokens,
                       SteeringScales steering) {
  const auto segment = static_cast<uint32_t>(segments.size());
  segments.push_back({&state, start, tokens.size(), new_tokens.size(), steering});
  for (size_t i = 0; i < new_tokens.size(); ++i) rows.push_back({segment, start + i});
  tokens.insert(tokens.end(), new_tokens.begin(), new_tokens.end());
}

}  // namespace ds4::cpu
