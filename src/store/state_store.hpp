// The states of one model's conversations on disk: written once, found by tokens or by text, read back as
// they were. It knows bytes and tokens, not engines (docs/formats.md §12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"
#include "store/save_policy.hpp"
#include "store/store_directory.hpp"
#include "store/text_borders.hpp"

namespace ds4::store {

/// A state to be written. Called from the thread that writes; nothing of it may change meanwhile.
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual std::span<const Token> tokens() const = 0;
  /// Tokens [block * block_tokens, + block_tokens) in `out`, block_bytes long.
  virtual Result<void> export_block(size_t block, std::span<std::byte> out) const = 0;
  /// What there is besides blocks after all tokens; `out` has frontier_bytes(tokens().size()) bytes.
  virtual Result<void> export_frontier(std::span<std::byte> out) const = 0;
  /// Those of the text, for a WriteInfo that has none.
  virtual std::vector<TextBorder> borders() const { return {}; }
};

/// Where a state goes that is read: its blocks in order, then the rest. The bytes are those that were
/// written.
class StateSink {
 public:
  virtual ~StateSink() = default;
  virtual Result<void> add_block(std::span<const std::byte> bytes) = 0;
  virtual Result<void> add_frontier(std::span<const std::byte> bytes) = 0;
};

struct StateStoreOptions {
  StoreDirectoryOptions directory;
  std::string fingerprint;    // of model and layout: 32 hexadecimal digits
  size_t block_tokens = 128;  // at most most_block_tokens
  uint64_t block_bytes = 0;
  std::function<uint64_t(uint64_t position)> frontier_bytes;
  SavePolicy policy;
  uint64_t min_growth_tokens = 128;           // no frontier closer to the one before it, unless forced
  uint64_t reply_bytes = uint64_t{64} << 20;  // of the budget, at most a sixteenth of that
};

/// What the store has for a prompt.
struct StoreMatch {
  Hash128 key;
  uint64_t position = 0;      // tokens of the state
  std::vector<Token> tokens;  // as stored: those of the state, and by text those up to the border
  size_t text_bytes = 0;  // of the prompt's text that `tokens` stand for; 0: they are the prompt's own tokens
};

struct StoreQuery {
  std::span<const Token> tokens;        // of the prompt
  std::span<const TextBorder> borders;  // of its text; may be empty
  uint64_t longer_than = 0;             // what is there already: only longer states are of use
  uint64_t most_tokens = UINT64_MAX;    // that fit
};

struct WriteInfo {
  SaveReason reason = SaveReason::unknown;
  bool anchor = false;  // a place where other conversations are likely to branch off
  bool forced = false;  // however little has been added since the last one
  std::vector<TextBorder> borders;
};

struct WriteReport {
  enum class Outcome { written, known, too_short, too_close };
  Outcome outcome = Outcome::written;
  Hash128 key;
  uint64_t bytes_written = 0;
  size_t blocks_written = 0;
  double seconds = 0;
};

class StateStore : public StoreDirectory {
 public:
  /// A disk that is full, or an index that cannot be used now, is one line in the log. Errors:
  /// invalid_argument for wrong options; those of StoreFolder::open.
  static Result<std::unique_ptr<StateStore>> open(StateStoreOptions options);

  /// The longest usable state; nothing, with the reason counted, if there is none. By text only if that gives
  /// more than by tokens; the caller should compare the text of `tokens` with its own before it uses them.
  std::optional<StoreMatch> find(const StoreQuery& query);

  /// A state by its key. Error: not_found, for states of other models too.
  Result<StoreMatch> match(const Hash128& key);

  /// Reads a state and checks every byte before it is handed on. What is damaged, or is refused by the sink
  /// because of what it holds (format, invalid_argument, not_finite), is dropped with one line in the log.
  /// Errors: not_found if it is gone or was damaged; io if it cannot be read now; those of the sink.
  Result<void> read(const StoreMatch& match, StateSink& sink);

  /// Writes what is not there yet. Errors: io, out_of_memory (no room); what is there stays as it is.
  Result<WriteReport> write(const StateSource& source, const WriteInfo& info);

  /// Remembers a reply under every key. Errors: io.
  Result<void> put_reply(std::span<const std::string_view> keys, std::span<const std::byte> bytes);
  /// Nothing if it is unknown, or damaged.
  std::optional<std::vector<std::byte>> get_reply(std::string_view key);

  const SavePolicy& policy() const { return settings_.policy; }
  uint64_t block_bytes() const { return settings_.block_bytes; }
  uint64_t frontier_bytes(uint64_t position) const { return settings_.frontier_bytes(position); }
  const Hash128& fingerprint() const { return fingerprint_; }

 private:
  StateStore(StateStoreOptions options, StoreFolder folder, const Hash128& fingerprint);

  struct Found {
    FrontierRow row;  // position 0: nothing
    std::vector<Token> tokens;
    size_t text_bytes = 0;
  };
  Result<Found> find_by_tokens(StoreIndex& index, const Chain& chain, const StoreQuery& query);
  Result<Found> find_by_text(StoreIndex& index, const StoreQuery& query, uint64_t longer_than);
  void count_miss(const char* reason);
  Result<void> note_use(const Hash128& key);

  bool is_indexed(const Hash128& key);
  Result<void> read_checked(const StoreMatch& match, StateSink& sink, uint64_t& bytes);
  Error refused(const Hash128& key, const Error& error);

  /// What of a sequence is there already.
  struct Known {
    bool frontier = false;
    size_t blocks = 0;
    int64_t last_segment = 0;
    uint64_t nearest = 0;  // position of the longest frontier before it
  };
  Result<Known> look_up(const Chain& chain, std::span<const Token> tokens);
  Result<SegmentHeader> write_segment(const StateSource& source, const Chain& chain, size_t first,
                                      size_t last);
  Result<FrontierHeader> write_frontier(const StateSource& source, const Chain& chain, const WriteInfo& info);
  /// Those of one write that have their names.
  struct NewFiles {
    std::vector<SegmentHeader> segments;
    std::optional<FrontierHeader> frontier;
  };
  Result<void> write_files(const StateSource& source, const Chain& chain, const WriteInfo& info,
                           size_t known_blocks, NewFiles& files);
  /// Files that are not in the index would count for nobody.
  void remove_unindexed(const NewFiles& files);
  Result<void> index_new(const std::vector<SegmentHeader>& segments, const FrontierHeader& frontier,
                         const Chain& chain, std::span<const Token> tokens);
  Result<WriteReport> write_locked(const StateSource& source, const WriteInfo& info);
  Result<void> thin(const Hash128& key);
  Hash128 reply_key(std::string_view key) const;

  StateStoreOptions settings_;
  Hash128 fingerprint_;
};

}  // namespace ds4::store
