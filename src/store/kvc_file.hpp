// The original system's checkpoint files, KVC version 1: cache text, payload, map of tool calls
// (docs/formats.md §14).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/state.hpp"
#include "ds4/token.hpp"
#include "store/byte_access.hpp"
#include "store/dsv4_payload.hpp"

namespace ds4::store {

inline constexpr size_t kvc_header_bytes = 52;
/// Longer texts and trailers are not read: a million tokens make some 5 MB.
inline constexpr size_t kvc_largest_text = size_t{64} << 20;
inline constexpr size_t kvc_largest_trailer = size_t{64} << 20;

/// Why the writer stored a state. Numbers are those of the file.
enum class KvcReason : uint8_t { unknown, cold, continued, evict, shutdown, agent_system, agent_session };

/// Bits of KvcHeader::flags.
inline constexpr uint8_t kvc_has_tools = 1, kvc_responses_key = 2, kvc_thinking_key = 4;

struct KvcHeader {
  uint8_t expert_bits = 2;  // of the routed experts' weights: 2 or 4
  KvcReason reason = KvcReason::unknown;
  uint8_t flags = 0;
  uint8_t model = 0;  // 0 Flash, 1 Pro: written by some forks, 0 by the others
  uint32_t tokens = 0;
  uint32_t hits = 0;
  uint32_t context = 0;         // of the writer, tokens
  uint8_t payload_version = 0;  // 2 with payloads of that version, else 0
  uint64_t created_at = 0;      // seconds since 1970
  uint64_t last_used = 0;
  uint64_t payload_bytes = 0;
  uint32_t text_bytes = 0;

  /// The cache text is the text of the tokens, not a transcript as a client sees it.
  bool text_is_tokens() const { return (flags & (kvc_responses_key | kvc_thinking_key)) == 0; }
};

/// A block of tool calls as the model wrote it, and the id that a client knows one of its calls by.
struct KvcTool {
  std::string id;
  std::string block;

  bool operator==(const KvcTool&) const = default;
};

struct KvcTools {
  std::vector<KvcTool> entries;
  std::string damage;  // one sentence if the trailer could not be read to its end: entries are those before
};

/// Name of the file for a cache text: 40 hex digits of its SHA-1, then ".kv".
std::string kvc_file_name(std::string_view text);
/// A name of that form, with digits of either case.
bool is_kvc_file_name(std::string_view name);

/// An opened file. Nothing is believed: every length is checked against the file before memory is taken.
class KvcFile {
 public:
  static Result<KvcFile> open(const std::string& path);
  /// `name` begins every message.
  static Result<KvcFile> open(std::unique_ptr<ByteSource> source, std::string name);

  const KvcHeader& header() const { return header_; }
  uint64_t file_bytes() const { return source_->size(); }
  /// The cache text. Error for more than kvc_largest_text.
  Result<std::string> text() const;
  /// The state, read through this file, which must outlive the reader. Flash only; see PayloadReader::open.
  Result<PayloadReader> payload(const StateLayout& layout, const PayloadReader::Limits& limits) const;
  /// Empty for a file without a trailer.
  Result<KvcTools> tools() const;

 private:
  KvcFile(std::unique_ptr<ByteSource> source, std::string name)
      : source_(std::move(source)), name_(std::move(name)) {}
  Result<void> read_header();

  std::unique_ptr<ByteSource> source_;
  std::string name_;
  KvcHeader header_;
};

/// Bytes of a trailer with `tools`; empty without any.
std::string kvc_trailer(std::span<const KvcTool> tools);

/// Writes a file that appears at its place when it is whole, with mode 0600; until then, and after a failure,
/// nothing of it is there.
class KvcWriter {
 public:
  /// Of `header`, tokens, context, sizes and the flag of the trailer are filled in. Errors: unsupported if
  /// the state is not one of Flash; invalid_argument without tokens, or for more text than a file can have.
  static Result<KvcWriter> create(const std::string& path, KvcHeader header, std::string_view text,
                                  std::span<const Token> tokens, const StateLayout& layout,
                                  std::span<const KvcTool> tools);

  KvcWriter(KvcWriter&&) noexcept;
  KvcWriter& operator=(KvcWriter&&) noexcept;
  ~KvcWriter();

  /// As PayloadWriter's. After an error the writer is of no more use.
  Result<void> add_block(std::span<const std::byte> block);
  Result<void> finish(std::span<const std::byte> frontier);

 private:
  struct Impl;
  explicit KvcWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4::store
