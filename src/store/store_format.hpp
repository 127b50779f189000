// The three kinds of files of the disk store: their headers as bytes (docs/formats.md §12). Everything read
// is checked; a header that is returned is whole and agrees with the size of its file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"
#include "store/hash128.hpp"
#include "store/save_policy.hpp"
#include "store/text_borders.hpp"

namespace ds4::store {

/// Blocks of a segment lie in one aligned range of so many.
inline constexpr size_t blocks_per_segment = 8;
inline constexpr size_t most_block_tokens = 4096;
inline constexpr size_t most_borders = 4096;
inline constexpr size_t most_reply_keys = 1024;
inline constexpr size_t most_reply_bytes = size_t{16} << 20;
/// No header is longer.
inline constexpr size_t most_header_bytes = size_t{256} << 10;

enum class FileKind { segment, frontier, reply };
std::string_view file_kind_name(FileKind kind);

/// Consecutive blocks of one sequence. What follows the header: the blocks.
struct SegmentHeader {
  Hash128 fingerprint;
  Hash128 parent;  // chain hash before the first block
  uint64_t first_block = 0;
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;
  uint64_t created = 0;               // seconds since 1970
  std::vector<Token> tokens;          // of all blocks
  std::vector<Hash128> block_hashes;  // of the bytes of each

  size_t blocks() const { return block_hashes.size(); }
  std::span<const Token> block(size_t index) const {
    return std::span(tokens).subspan(index * block_tokens, block_tokens);
  }
  size_t header_bytes() const;
  uint64_t file_bytes() const { return header_bytes() + block_bytes * blocks(); }
  /// Chain hashes: the parent, then after each block.
  std::vector<Hash128> chain() const;
  /// Of the file: H(parent, chain hash after the last block).
  Hash128 name() const { return name_of(parent, chain().back()); }
  static Hash128 name_of(const Hash128& parent, const Hash128& last);
};

/// What a state has besides blocks. What follows the header: those bytes.
struct FrontierHeader {
  Hash128 fingerprint;
  Hash128 base;  // chain hash of the whole blocks
  uint64_t position = 0;
  uint32_t block_tokens = 0;
  uint64_t payload_bytes = 0;
  uint64_t created = 0;
  SaveReason reason = SaveReason::unknown;
  bool anchor = false;  // other conversations will begin here
  std::vector<Token> tail;
  std::vector<TextBorder> borders;
  Hash128 payload_hash;

  size_t header_bytes() const;
  uint64_t file_bytes() const { return header_bytes() + payload_bytes; }
  /// Of the file, and of the entry.
  Hash128 name() const;
};

/// A reply as it was sampled. What follows the header: its bytes.
struct ReplyHeader {
  uint64_t created = 0;
  std::vector<Hash128> keys;
  uint32_t payload_bytes = 0;
  Hash128 payload_hash;

  size_t header_bytes() const;
  uint64_t file_bytes() const { return header_bytes() + payload_bytes; }
  Hash128 name() const;
};

std::vector<std::byte> encode(const SegmentHeader& header);
std::vector<std::byte> encode(const FrontierHeader& header);
std::vector<std::byte> encode(const ReplyHeader& header);

/// What stands at the beginning of every file: magic, version, length of the header.
inline constexpr size_t preamble_bytes = 16;
/// The length of the header, at most `file_bytes` and most_header_bytes. Errors: format; unsupported, for the
/// version of a newer program.
Result<size_t> parse_preamble(FileKind kind, std::span<const std::byte> preamble, uint64_t file_bytes);

/// `header` has the length that the preamble told. Error: format, with a sentence that names no file.
Result<SegmentHeader> parse_segment(std::span<const std::byte> header, uint64_t file_bytes);
Result<FrontierHeader> parse_frontier(std::span<const std::byte> header, uint64_t file_bytes);
Result<ReplyHeader> parse_reply(std::span<const std::byte> header, uint64_t file_bytes);

}  // namespace ds4::store
