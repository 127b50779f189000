// The index of a store: what the headers of its files say, ready to be searched. It can be made again from
// them at any time, so nothing in it is trusted beyond that: a row that does not make sense is a format
// error.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"
#include "store/hash128.hpp"
#include "store/save_policy.hpp"
#include "store/sqlite.hpp"
#include "store/store_format.hpp"

namespace ds4::store {

struct SegmentRow {
  int64_t id = 0;
  Hash128 name, fingerprint, parent_hash;
  int64_t parent = 0;  // the segment that holds the block before the first; 0: there is none before
  uint64_t first_block = 0;
  uint32_t block_tokens = 0;
  uint32_t blocks = 0;
  uint64_t file_bytes = 0;
  std::vector<Token> tokens;  // empty in lists of all
};

struct FrontierRow {
  int64_t id = 0;
  Hash128 key, fingerprint, base;
  int64_t segment = 0;  // of the last whole block; 0: there is no whole block
  int64_t parent = 0;   // the longest other frontier with a beginning of this one's tokens; 0: none
  uint64_t position = 0;
  uint32_t block_tokens = 0;
  uint64_t file_bytes = 0;
  double hits = 0;  // as of `used`; they decay
  int64_t created = 0, used = 0;
  bool pinned = false, anchor = false;
  SaveReason reason = SaveReason::unknown;
  std::vector<Token> tail;
};

struct BlockPlace {
  int64_t segment = 0;
  uint32_t slot = 0;
};

struct BorderRow {
  Hash128 prefix;  // key of the tokens up to the border
  uint64_t tokens = 0;
  int64_t frontier = 0;
};

struct ReplyRow {
  int64_t id = 0;
  Hash128 name;
  uint64_t file_bytes = 0;
  int64_t created = 0;
};

class StoreIndex {
 public:
  /// Errors: format, if it has to be made anew.
  static Result<StoreIndex> open(const std::string& path);

  Database& database() { return database_; }

  /// `headers` order: parents first. Error: format, if the block before is not there.
  Result<int64_t> add_segment(const SegmentHeader& header, uint64_t file_bytes);
  Result<std::optional<SegmentRow>> segment(int64_t id);
  Result<std::vector<SegmentRow>> segments();
  Result<std::optional<BlockPlace>> find_block(const Hash128& hash);
  /// Segments that begin behind this one.
  Result<std::vector<SegmentRow>> children_of(int64_t segment);
  Result<void> remove_segment(int64_t id);

  /// `parent`: see FrontierRow; frontiers between it and this one's end become this one's children.
  /// `prefixes`: the key of the tokens before each border of the header.
  Result<int64_t> add_frontier(const FrontierHeader& header, uint64_t file_bytes, int64_t parent, bool pinned,
                               std::span<const int64_t> children, std::span<const Hash128> prefixes);
  Result<std::optional<FrontierRow>> frontier(const Hash128& key);
  Result<std::optional<FrontierRow>> frontier(int64_t id);
  Result<std::vector<FrontierRow>> frontiers();
  /// Those with this chain hash, the longest first.
  Result<std::vector<FrontierRow>> frontiers_at(const Hash128& base);
  Result<std::vector<FrontierRow>> frontiers_on(int64_t segment);
  Result<std::vector<FrontierRow>> children_of_frontier(int64_t id);
  /// Its children become its parent's, and so do its borders if nobody else has them.
  Result<void> remove_frontier(const FrontierRow& row);
  Result<void> set_use(int64_t id, double hits, int64_t used);
  Result<void> set_pinned(int64_t id, bool pinned);

  Result<std::vector<BorderRow>> find_border(const Hash128& hash);

  /// The keys lead to it from now on, also if it is there already.
  Result<void> add_reply(const ReplyHeader& header, uint64_t file_bytes);
  Result<std::optional<ReplyRow>> find_reply(const Hash128& key);
  /// The oldest first.
  Result<std::vector<ReplyRow>> replies();
  Result<void> remove_reply(int64_t id);

  struct Totals {
    uint64_t segments = 0, frontiers = 0, replies = 0;  // files
    uint64_t state_bytes = 0, reply_bytes = 0;
  };
  Result<Totals> totals();

 private:
  explicit StoreIndex(Database database) : database_(std::move(database)) {}
  Result<void> create();
  Result<void> check();
  Database database_;
};

}  // namespace ds4::store
