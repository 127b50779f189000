// A session's state as bytes, all pieces together.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "ds4/engine.hpp"
#include "support/loaded_model.hpp"

namespace ds4::testing {

struct StateBytes {
  std::vector<Token> tokens;
  std::vector<std::vector<std::byte>> blocks;
  std::vector<std::byte> frontier;

  bool operator==(const StateBytes&) const = default;
};

inline StateBytes export_all(const Engine& engine, const Snapshot& snapshot) {
  const StateLayout& layout = engine.state_layout();
  StateBytes bytes;
  bytes.tokens.assign(snapshot.token_ids().begin(), snapshot.token_ids().end());
  for (size_t block = 0; block < snapshot.tokens() / state_block_tokens; ++block) {
    must(snapshot.export_block(block, bytes.blocks.emplace_back(layout.block_bytes())));
  }
  bytes.frontier.resize(layout.frontier_bytes(snapshot.tokens()));
  must(snapshot.export_frontier(bytes.frontier));
  return bytes;
}

inline Result<Session> try_import(const Engine& engine, const StateBytes& bytes, uint64_t context = 8192) {
  auto import = must(engine.import_state(bytes.tokens, context));
  for (const auto& block : bytes.blocks) must(import.add_block(block));
  return import.finish(bytes.frontier);
}

inline Session import_all(const Engine& engine, const StateBytes& bytes, uint64_t context = 8192) {
  return must(try_import(engine, bytes, context));
}

}  // namespace ds4::testing
