// Questions to the index that follow sequences from block to block.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"
#include "store/chain.hpp"
#include "store/store_files.hpp"
#include "store/store_index.hpp"

namespace ds4::store {

/// The whole of a frontier's sequence.
struct Lineage {
  struct Piece {
    SegmentRow segment;
    uint32_t blocks = 0;  // of it, from its first
  };
  std::vector<Piece> pieces;   // from the first block on
  std::vector<Token> tokens;   // up to the frontier's position
  std::vector<Hash128> chain;  // h_0 to that of the last whole block
};

/// Errors: format, if the rows do not go together.
Result<Lineage> lineage_of(StoreIndex& index, const FrontierRow& row);

/// Blocks from the beginning of a chain that are there.
Result<size_t> known_blocks(StoreIndex& index, const Chain& chain);

/// The longest frontier with at most `most_tokens` tokens that a sequence begins with. `chain` is that of
/// `tokens`.
Result<std::optional<FrontierRow>> nearest_frontier(StoreIndex& index, const Chain& chain,
                                                    size_t block_tokens, std::span<const Token> tokens,
                                                    uint64_t most_tokens);

/// Adds a frontier between those before and behind it. `chain` and `tokens` are of the whole sequence.
Result<void> insert_frontier(StoreIndex& index, const FrontierHeader& header, uint64_t file_bytes,
                             bool pinned, std::span<const Hash128> chain, std::span<const Token> tokens);

/// What is to be unlinked once a transaction is through.
using FileList = std::vector<StoreFolder::Found>;

/// Removes a segment with everything that builds on it.
Result<void> remove_segment_tree(StoreIndex& index, const SegmentRow& segment, FileList& files);
/// Removes segments that no frontier needs.
Result<void> remove_unneeded_segments(StoreIndex& index, FileList& files);

}  // namespace ds4::store
