#include "store/lineage.hpp"

#include <algorithm>
#include <unordered_set>

#include "base/error.hpp"
#include "store/eviction.hpp"

namespace ds4::store {
namespace {

Error disagree() {
  return fail(ErrorCode::format, "the index is damaged: its rows do not go together");
}

bool begins_with(std::span<const Token> tokens, std::span<const Token> beginning) {
  return tokens.size() >= beginning.size() && std::equal(beginning.begin(), beginning.end(), tokens.begin());
}

/// Frontiers that continue the sequence of a header, which ends `header.tail` behind its base. Looks only at
/// what branches off there: many conversations may have the base in common.
Result<std::vector<FrontierRow>> frontiers_behind(StoreIndex& index, const FrontierHeader& header) {
  const uint64_t blocks = header.position / header.block_tokens;
  DS4_ASSIGN(auto behind, index.frontiers_at(header.base));
  std::erase_if(behind, [&](const FrontierRow& row) {
    return row.position <= header.position || !begins_with(row.tail, header.tail);
  });
  int64_t holder = 0;  // of the base
  bool goes_on = false;
  if (blocks > 0) {
    DS4_ASSIGN(const auto base, index.find_block(header.base));
    if (!base) return disagree();
    holder = base->segment;
    DS4_ASSIGN(const auto segment, index.segment(holder));
    if (!segment || segment->block_tokens != header.block_tokens) return disagree();
    const size_t next = (size_t{base->slot} + 1) * header.block_tokens;
    goes_on =
        next < segment->tokens.size() && begins_with(std::span(segment->tokens).subspan(next), header.tail);
  }
  std::vector<int64_t> open;
  DS4_ASSIGN(const auto branches, index.children_of(holder));
  for (const SegmentRow& branch : branches) {
    if (branch.first_block > blocks && goes_on) open.push_back(branch.id);
    if (branch.parent_hash != header.base) continue;
    DS4_ASSIGN(const auto whole, index.segment(branch.id));
    if (whole && begins_with(whole->tokens, header.tail)) open.push_back(branch.id);
  }
  if (goes_on) {
    DS4_ASSIGN(const auto here, index.frontiers_on(holder));
    for (const FrontierRow& row : here) {
      if (row.position / header.block_tokens > blocks) behind.push_back(row);
    }
  }
  std::unordered_set<int64_t> seen(open.begin(), open.end());
  for (size_t i = 0; i < open.size(); ++i) {
    DS4_ASSIGN(const auto here, index.frontiers_on(open[i]));
    behind.insert(behind.end(), here.begin(), here.end());
    DS4_ASSIGN(const auto children, index.children_of(open[i]));
    for (const SegmentRow& child : children) {
      if (seen.insert(child.id).second) open.push_back(child.id);
    }
  }
  return behind;
}

}  // namespace

Result<Lineage> lineage_of(StoreIndex& index, const FrontierRow& row) {
  Lineage lineage;
  const size_t blocks = row.position / row.block_tokens;
  size_t left = blocks;
  for (int64_t id = row.segment; left > 0;) {
    DS4_ASSIGN(auto segment, index.segment(id));
    if (!segment || segment->block_tokens != row.block_tokens || segment->fingerprint != row.fingerprint ||
        segment->first_block >= left || left - segment->first_block > segment->blocks) {
      return disagree();
    }
    const auto used = static_cast<uint32_t>(left - segment->first_block);
    left = segment->first_block;
    id = segment->parent;
    lineage.pieces.push_back({std::move(*segment), used});
  }
  std::reverse(lineage.pieces.begin(), lineage.pieces.end());
  Chain chain(row.fingerprint, row.block_tokens);
  for (Lineage::Piece& piece : lineage.pieces) {
    const size_t count = size_t{piece.blocks} * row.block_tokens;
    const auto tokens = std::span(piece.segment.tokens).first(count);
    lineage.tokens.insert(lineage.tokens.end(), tokens.begin(), tokens.end());
    if (piece.segment.parent_hash != chain.hash(chain.blocks())) return disagree();
    chain.append(tokens);
  }
  if (chain.blocks() != blocks || chain.hash(blocks) != row.base) return disagree();
  for (size_t b = 0; b <= blocks; ++b) lineage.chain.push_back(chain.hash(b));
  lineage.tokens.insert(lineage.tokens.end(), row.tail.begin(), row.tail.end());
  if (Chain::key_of(row.base, row.tail, row.position) != row.key) return disagree();
  return lineage;
}

Result<size_t> known_blocks(StoreIndex& index, const Chain& chain) {
  // A block is there only if those before it are.
  size_t known = 0, unknown = chain.blocks() + 1;
  while (unknown - known > 1) {
    const size_t middle = known + (unknown - known) / 2;
    DS4_ASSIGN(const auto place, index.find_block(chain.hash(middle)));
    (place ? known : unknown) = middle;
  }
  return known;
}

Result<std::optional<FrontierRow>> nearest_frontier(StoreIndex& index, const Chain& chain,
                                                    size_t block_tokens, std::span<const Token> tokens,
                                                    uint64_t most_tokens) {
  DS4_ASSIGN(const size_t known, known_blocks(index, chain));
  for (size_t b = std::min<uint64_t>(known, most_tokens / block_tokens) + 1; b-- > 0;) {
    DS4_ASSIGN(auto rows, index.frontiers_at(chain.hash(b)));
    for (FrontierRow& row : rows) {
      if (row.position > most_tokens || row.position > tokens.size() || row.block_tokens != block_tokens)
        continue;
      if (row.position / block_tokens == b && begins_with(tokens.subspan(b * block_tokens), row.tail)) {
        return std::optional(std::move(row));
      }
    }
  }
  return std::optional<FrontierRow>();
}

Result<void> insert_frontier(StoreIndex& index, const FrontierHeader& header, uint64_t file_bytes,
                             bool pinned, std::span<const Hash128> chain, std::span<const Token> tokens) {
  const size_t block_tokens = header.block_tokens;
  Chain hashes(header.fingerprint, block_tokens);
  hashes.append(tokens);
  if (hashes.key() != header.name() || hashes.blocks() + 1 != chain.size()) {
    return fail(ErrorCode::internal, "a frontier with other tokens than its own");
  }
  DS4_ASSIGN(const auto parent, nearest_frontier(index, hashes, block_tokens, tokens, header.position - 1));
  const int64_t parent_id = parent ? parent->id : 0;
  std::vector<int64_t> children;
  DS4_ASSIGN(const auto behind, frontiers_behind(index, header));
  for (const FrontierRow& row : behind) {
    if (row.parent == parent_id) children.push_back(row.id);
  }
  std::vector<Hash128> prefixes;
  for (const TextBorder& border : header.borders) {
    const size_t blocks = border.tokens / block_tokens;
    const auto tail = tokens.subspan(blocks * block_tokens, border.tokens % block_tokens);
    prefixes.push_back(Chain::key_of(chain[blocks], tail, border.tokens));
  }
  DS4_TRY(index.add_frontier(header, file_bytes, parent_id, pinned, children, prefixes));
  return {};
}

Result<void> remove_segment_tree(StoreIndex& index, const SegmentRow& segment, FileList& files) {
  std::vector<SegmentRow> open{segment};
  for (size_t i = 0; i < open.size(); ++i) {
    DS4_ASSIGN(const auto children, index.children_of(open[i].id));
    for (const SegmentRow& child : children) {
      const bool seen = std::any_of(open.begin(), open.end(),
                                    [&](const SegmentRow& other) { return other.id == child.id; });
      if (!seen) open.push_back(child);
    }
    DS4_ASSIGN(const auto frontiers, index.frontiers_on(open[i].id));
    for (const FrontierRow& row : frontiers) {
      DS4_TRY(index.remove_frontier(row));
      files.push_back({FileKind::frontier, row.key, row.file_bytes});
    }
  }
  for (const SegmentRow& row : open) {
    DS4_TRY(index.remove_segment(row.id));
    files.push_back({FileKind::segment, row.name, row.file_bytes});
  }
  return {};
}

Result<void> remove_unneeded_segments(StoreIndex& index, FileList& files) {
  DS4_ASSIGN(const auto frontiers, index.frontiers());
  DS4_ASSIGN(const auto segments, index.segments());
  for (const SegmentRow& row : unneeded_segments(frontiers, segments)) {
    DS4_TRY(index.remove_segment(row.id));
    files.push_back({FileKind::segment, row.name, row.file_bytes});
  }
  return {};
}

}  // namespace ds4::store
