#include "store/store_format.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "store/chain.hpp"

namespace ds4::store {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian, as is every machine we run on");

constexpr uint32_t version = 1;
constexpr size_t hash_bytes = sizeof(Hash128);
constexpr size_t border_bytes = 2 * sizeof(uint64_t) + hash_bytes;
constexpr size_t segment_fixed_bytes = 80;
constexpr size_t frontier_fixed_bytes = 96;
constexpr size_t reply_fixed_bytes = 32;
constexpr uint32_t flag_anchor = 1;

std::string_view magic_of(FileKind kind) {
  switch (kind) {
    case FileKind::segment:
      return "DS4KVSEG";
    case FileKind::frontier:
      return "DS4KVFRO";
    case FileKind::reply:
      return "DS4KVREP";
  }
  return "";
}

class ByteWriter {
 public:
  ByteWriter(FileKind kind, size_t header_bytes) {
    bytes_.reserve(header_bytes);
    append(std::as_bytes(std::span(magic_of(kind))));
    put(version);
    put(static_cast<uint32_t>(header_bytes));
  }
  template <class T>
  void put(T value) {
    append(std::as_bytes(std::span(&value, 1)));
  }
  void put(const Hash128& hash) { append(std::as_bytes(std::span(hash.bytes))); }
  void append(std::span<const std::byte> more) { bytes_.insert(bytes_.end(), more.begin(), more.end()); }
  /// Ends the header with its own hash.
  std::vector<std::byte> finish() && {
    put(hash_of(bytes_));
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads what the caller has checked to be there.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  Hash128 hash() {
    Hash128 value;
    std::memcpy(value.bytes.data(), rest_.data(), hash_bytes);
    rest_ = rest_.subspan(hash_bytes);
    return value;
  }
  std::vector<Token> tokens(size_t count) {
    std::vector<Token> all(count);
    if (count > 0) std::memcpy(all.data(), rest_.data(), count * sizeof(Token));
    rest_ = rest_.subspan(count * sizeof(Token));
    return all;
  }
  std::vector<Hash128> hashes(size_t count) {
    std::vector<Hash128> all(count);
    for (Hash128& one : all) one = hash();
    return all;
  }

 private:
  std::span<const std::byte> rest_;
};

Error damaged(std::string_view what) {
  return fail(ErrorCode::format, "{}", what);
}

/// What is the same for all kinds. Afterwards the first `fixed_bytes` bytes can be read.
Result<ByteReader> open_header(FileKind kind, std::span<const std::byte> header, size_t fixed_bytes,
                               uint64_t file_bytes) {
  if (header.size() < fixed_bytes + hash_bytes) return damaged("the header is too short");
  DS4_ASSIGN(const size_t told, parse_preamble(kind, header.first(preamble_bytes), file_bytes));
  if (told != header.size()) return damaged("the length of the header is wrong");
  const auto content = header.first(header.size() - hash_bytes);
  if (Hash128::from_bytes(header.last(hash_bytes)) != hash_of(content)) {
    return damaged("the checksum of the header is wrong");
  }
  return ByteReader(header.subspan(preamble_bytes));
}

bool tokens_are_valid(std::span<const Token> tokens) {
  return std::all_of(tokens.begin(), tokens.end(), [](Token token) { return token >= 0; });
}

}  // namespace

std::string_view file_kind_name(FileKind kind) {
  switch (kind) {
    case FileKind::segment:
      return "segment";
    case FileKind::frontier:
      return "frontier";
    case FileKind::reply:
      return "reply";
  }
  return "";
}

Result<size_t> parse_preamble(FileKind kind, std::span<const std::byte> preamble, uint64_t file_bytes) {
  if (preamble.size() < preamble_bytes) return damaged("the file is too short");
  const std::string_view magic = magic_of(kind);
  if (std::memcmp(preamble.data(), magic.data(), magic.size()) != 0) {
    return fail(ErrorCode::format, "this is not a {} file", file_kind_name(kind));
  }
  ByteReader reader(preamble.subspan(magic.size()));
  const auto found = reader.get<uint32_t>();
  // Of a newer program, perhaps; nobody wrote a smaller one.
  if (found > version) return fail(ErrorCode::unsupported, "version {} is not known", found);
  if (found != version) return fail(ErrorCode::format, "version {} is not known", found);
  const auto length = reader.get<uint32_t>();
  if (length < preamble_bytes + hash_bytes || length > most_header_bytes || length > file_bytes) {
    return damaged("the length of the header is out of range");
  }
  return size_t{length};
}

size_t SegmentHeader::header_bytes() const {
  return segment_fixed_bytes + tokens.size() * sizeof(Token) + (block_hashes.size() + 1) * hash_bytes;
}

std::vector<Hash128> SegmentHeader::chain() const {
  std::vector<Hash128> hashes{parent};
  for (size_t i = 0; i < blocks(); ++i) hashes.push_back(Chain::next(hashes.back(), block(i)));
  return hashes;
}

Hash128 SegmentHeader::name_of(const Hash128& parent, const Hash128& last) {
  Hasher hasher;
  hasher.add(parent);
  hasher.add(last);
  return hasher.digest();
}

size_t FrontierHeader::header_bytes() const {
  return frontier_fixed_bytes + tail.size() * sizeof(Token) + borders.size() * border_bytes + 2 * hash_bytes;
}

Hash128 FrontierHeader::name() const {
  return Chain::key_of(base, tail, position);
}

size_t ReplyHeader::header_bytes() const {
  return reply_fixed_bytes + (keys.size() + 2) * hash_bytes;
}

Hash128 ReplyHeader::name() const {
  Hasher hasher;
  for (const Hash128& key : keys) hasher.add(key);
  hasher.add(payload_hash);
  return hasher.digest();
}

std::vector<std::byte> encode(const SegmentHeader& header) {
  ByteWriter writer(FileKind::segment, header.header_bytes());
  writer.put(header.fingerprint);
  writer.put(header.parent);
  writer.put(header.first_block);
  writer.put(static_cast<uint32_t>(header.blocks()));
  writer.put(header.block_tokens);
  writer.put(header.block_bytes);
  writer.put(header.created);
  writer.append(std::as_bytes(std::span(header.tokens)));
  for (const Hash128& hash : header.block_hashes) writer.put(hash);
  return std::move(writer).finish();
}

std::vector<std::byte> encode(const FrontierHeader& header) {
  ByteWriter writer(FileKind::frontier, header.header_bytes());
  writer.put(header.fingerprint);
  writer.put(header.base);
  writer.put(header.position);
  writer.put(static_cast<uint32_t>(header.tail.size()));
  writer.put(header.block_tokens);
  writer.put(header.payload_bytes);
  writer.put(header.created);
  writer.put(static_cast<uint32_t>(header.reason));
  writer.put(header.anchor ? flag_anchor : uint32_t{0});
  writer.put(static_cast<uint32_t>(header.borders.size()));
  writer.put(uint32_t{0});
  writer.append(std::as_bytes(std::span(header.tail)));
  for (const TextBorder& border : header.borders) {
    writer.put(border.tokens);
    writer.put(border.text_bytes);
    writer.put(border.hash);
  }
  writer.put(header.payload_hash);
  return std::move(writer).finish();
}

std::vector<std::byte> encode(const ReplyHeader& header) {
  ByteWriter writer(FileKind::reply, header.header_bytes());
  writer.put(header.created);
  writer.put(static_cast<uint32_t>(header.keys.size()));
  writer.put(header.payload_bytes);
  for (const Hash128& key : header.keys) writer.put(key);
  writer.put(header.payload_hash);
  return std::move(writer).finish();
}

Result<SegmentHeader> parse_segment(std::span<const std::byte> header, uint64_t file_bytes) {
  DS4_ASSIGN(ByteReader reader, open_header(FileKind::segment, header, segment_fixed_bytes, file_bytes));
  SegmentHeader segment;
  segment.fingerprint = reader.hash();
  segment.parent = reader.hash();
  segment.first_block = reader.get<uint64_t>();
  const auto count = reader.get<uint32_t>();
  segment.block_tokens = reader.get<uint32_t>();
  segment.block_bytes = reader.get<uint64_t>();
  segment.created = reader.get<uint64_t>();
  if (count == 0 || count > blocks_per_segment || segment.block_tokens == 0 ||
      segment.block_tokens > most_block_tokens) {
    return damaged("the number of blocks or of their tokens is out of range");
  }
  const uint64_t range = segment.first_block / blocks_per_segment;
  if (segment.first_block > UINT64_MAX / most_block_tokens - count ||
      (segment.first_block + count - 1) / blocks_per_segment != range) {
    return damaged("the place of the blocks is out of range");
  }
  const size_t token_count = size_t{count} * segment.block_tokens;
  if (header.size() != segment_fixed_bytes + token_count * sizeof(Token) + (size_t{count} + 1) * hash_bytes) {
    return damaged("the length of the header does not fit its counts");
  }
  const auto payload = checked_multiply(segment.block_bytes, count);
  const auto total = payload ? checked_add(*payload, header.size()) : std::nullopt;
  if (total != file_bytes) return damaged("the size of the file does not fit its header");
  segment.tokens = reader.tokens(token_count);
  segment.block_hashes = reader.hashes(count);
  if (!tokens_are_valid(segment.tokens)) return damaged("a token is negative");
  return segment;
}

Result<FrontierHeader> parse_frontier(std::span<const std::byte> header, uint64_t file_bytes) {
  DS4_ASSIGN(ByteReader reader, open_header(FileKind::frontier, header, frontier_fixed_bytes, file_bytes));
  FrontierHeader frontier;
  frontier.fingerprint = reader.hash();
  frontier.base = reader.hash();
  frontier.position = reader.get<uint64_t>();
  const auto tail_count = reader.get<uint32_t>();
  frontier.block_tokens = reader.get<uint32_t>();
  frontier.payload_bytes = reader.get<uint64_t>();
  frontier.created = reader.get<uint64_t>();
  const auto reason = reader.get<uint32_t>();
  const auto flags = reader.get<uint32_t>();
  const auto border_count = reader.get<uint32_t>();
  reader.get<uint32_t>();
  if (frontier.block_tokens == 0 || frontier.block_tokens > most_block_tokens || frontier.position == 0 ||
      frontier.position > uint64_t{INT64_MAX} || frontier.position % frontier.block_tokens != tail_count) {
    return damaged("the position does not fit the tokens");
  }
  if (border_count > most_borders) return damaged("the number of borders is out of range");
  if (header.size() !=
      frontier_fixed_bytes + tail_count * sizeof(Token) + border_count * border_bytes + 2 * hash_bytes) {
    return damaged("the length of the header does not fit its counts");
  }
  if (checked_add(frontier.payload_bytes, header.size()) != file_bytes) {
    return damaged("the size of the file does not fit its header");
  }
  if (reason > static_cast<uint32_t>(SaveReason::turn)) return damaged("the reason is not known");
  frontier.reason = static_cast<SaveReason>(reason);
  frontier.anchor = (flags & flag_anchor) != 0;
  frontier.tail = reader.tokens(tail_count);
  if (!tokens_are_valid(frontier.tail)) return damaged("a token is negative");
  uint64_t before = 0;
  for (uint32_t i = 0; i < border_count; ++i) {
    TextBorder border;
    border.tokens = reader.get<uint64_t>();
    border.text_bytes = reader.get<uint64_t>();
    border.hash = reader.hash();
    if (border.tokens < before || border.tokens > frontier.position)
      return damaged("a border is out of place");
    before = border.tokens;
    frontier.borders.push_back(border);
  }
  frontier.payload_hash = reader.hash();
  return frontier;
}

Result<ReplyHeader> parse_reply(std::span<const std::byte> header, uint64_t file_bytes) {
  DS4_ASSIGN(ByteReader reader, open_header(FileKind::reply, header, reply_fixed_bytes, file_bytes));
  ReplyHeader reply;
  reply.created = reader.get<uint64_t>();
  const auto key_count = reader.get<uint32_t>();
  reply.payload_bytes = reader.get<uint32_t>();
  if (key_count == 0 || key_count > most_reply_keys || reply.payload_bytes > most_reply_bytes) {
    return damaged("the number of keys or bytes is out of range");
  }
  if (header.size() != reply_fixed_bytes + (size_t{key_count} + 2) * hash_bytes) {
    return damaged("the length of the header does not fit its counts");
  }
  if (header.size() + uint64_t{reply.payload_bytes} != file_bytes) {
    return damaged("the size of the file does not fit its header");
  }
  reply.keys = reader.hashes(key_count);
  reply.payload_hash = reader.hash();
  return reply;
}

}  // namespace ds4::store
