// The original system's session payload ("DSV4") from and to a portable state (docs/formats.md §14).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/state.hpp"
#include "ds4/token.hpp"
#include "store/byte_access.hpp"

namespace ds4::store {

/// Files of the original hold Flash states only: unsupported for anything else. The drafter makes no
/// difference.
Result<void> require_flash(const StateLayout& layout);
StateLayout flash_layout();

/// Of a payload with `tokens` tokens.
uint64_t payload_bytes(const StateLayout& layout, uint32_t tokens);

/// The numbers a payload begins with.
struct PayloadHeader {
  uint32_t version = 1;
  uint32_t context = 0;        // tokens the writer had room for
  uint32_t prefill_chunk = 0;  // of the writer
  uint32_t raw_capacity = 0;   // rows in the writer's ring
  uint32_t window = 0;         // min(128, context)
  uint32_t row_capacity = 0;   // compressed rows of a ratio-4 layer
  uint32_t tokens = 0;
  uint32_t live_rows = 0;  // min(window, tokens)
};

/// What a state with `tokens` tokens is written with: the smallest context of at least 2,048 that holds it,
/// as a reader takes only files of a context no larger than its own, and the chunk that goes with it.
PayloadHeader payload_header(uint32_t tokens);

/// Reads a payload of version 1 or 2 as a portable state, in any order of its pieces. Holds the tokens and
/// one piece of at most 256 KiB. Rows become packed rows: exact for those the original has rounded but for
/// the 64 rotary values, which become F16. The state of a drafter is given as zeros: its drafts get good
/// again as the window fills.
class PayloadReader {
 public:
  struct Limits {
    uint64_t context = uint64_t{1} << 20;  // tokens of the session that the state is for
  };

  /// The payload is [offset, offset + bytes) of `source`, which must outlive the reader. Checks all but the
  /// numbers of the rows; `name` begins every message.
  static Result<PayloadReader> open(const ByteSource& source, uint64_t offset, uint64_t bytes,
                                    const StateLayout& layout, const Limits& limits, std::string name);

  const PayloadHeader& header() const { return header_; }
  const std::vector<Token>& tokens() const { return tokens_; }
  size_t blocks() const;
  size_t block_bytes() const { return layout_.block_bytes(); }
  size_t frontier_bytes() const { return layout_.frontier_bytes(tokens_.size()); }

  /// Preconditions: block < blocks(), out.size() == block_bytes(). Fails for numbers that are not finite.
  Result<void> export_block(size_t block, std::span<std::byte> out) const;
  /// Precondition: out.size() == frontier_bytes(). Fails for numbers that are not finite.
  Result<void> export_frontier(std::span<std::byte> out) const;

 private:
  PayloadReader(const ByteSource& source, uint64_t offset, uint64_t bytes, const StateLayout& layout,
                std::string name);
  Result<void> read_header(const Limits& limits);
  Result<void> check_header(std::span<const uint32_t> fields, const Limits& limits) const;
  Result<void> read_tokens();
  Result<void> check_row_counts(const Limits& limits) const;
  Result<void> check_end() const;
  /// Bytes at `at` of the payload; `what` is what it ends in, if it ends.
  Result<void> read(uint64_t at, std::span<std::byte> out, std::string_view what) const;
  /// The rows of `part`, whose first is at `at`.
  Result<void> pack_rows(uint64_t at, const StatePart& part, size_t layer, std::span<std::byte> out) const;
  /// The living rows of a matrix of a compressor, which begins at `at`.
  Result<void> copy_matrix(uint64_t at, const StatePart& part, size_t layer, std::span<std::byte> out) const;
  Result<void> pack_layers(const StateParts& parts, std::span<std::byte> out) const;

  const ByteSource* source_;
  uint64_t offset_, bytes_;
  StateLayout layout_;
  std::string name_;
  PayloadHeader header_;
  std::vector<Token> tokens_;
};

/// Writes a portable state as a payload of version 1. Holds one piece of at most 256 KiB.
class PayloadWriter {
 public:
  /// Writes header, tokens and counts at `offset` of `sink`, which must outlive the writer. Preconditions:
  /// at least one token, fewer than 2^32.
  static Result<PayloadWriter> begin(ByteSink& sink, uint64_t offset, const StateLayout& layout,
                                     std::span<const Token> tokens, const PayloadHeader& header);

  /// Block after block, tokens / 128 of them. Precondition: block.size() == layout.block_bytes().
  Result<void> add_block(std::span<const std::byte> block);
  /// Precondition: all blocks were added, frontier.size() == layout.frontier_bytes(tokens).
  Result<void> finish(std::span<const std::byte> frontier);

 private:
  PayloadWriter(ByteSink& sink, uint64_t offset, const StateLayout& layout, const PayloadHeader& header)
      : sink_(&sink), offset_(offset), layout_(layout), header_(header) {}
  Result<void> write_start(std::span<const Token> tokens);
  Result<void> unpack_rows(std::span<const std::byte> bytes, const StatePart& part, uint64_t at);
  Result<void> write_matrix(std::span<const std::byte> bytes, const StatePart& part, size_t layer,
                            float unwritten, uint64_t at);
  Result<void> unpack_layers(const StateParts& parts, std::span<const std::byte> bytes);

  ByteSink* sink_;
  uint64_t offset_;
  StateLayout layout_;
  PayloadHeader header_;
  size_t blocks_ = 0;
};

}  // namespace ds4::store
