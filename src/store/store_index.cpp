#include "store/store_index.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "store/chain.hpp"
#include "store/store_files.hpp"

namespace ds4::store {
namespace {

constexpr int64_t application_id = 0x6473346b;  // "ds4k"
constexpr int64_t schema_version = 1;

constexpr const char* settings =
    "PRAGMA auto_vacuum=FULL;"
    "PRAGMA journal_mode=WAL;"
    "PRAGMA synchronous=NORMAL;"
    "PRAGMA wal_autocheckpoint=64;"
    "PRAGMA journal_size_limit=262144;"
    "PRAGMA cell_size_check=ON;"
    "PRAGMA mmap_size=0;"
    "PRAGMA cache_size=-2048;";

constexpr const char* schema =
    "CREATE TABLE segments(id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, fingerprint BLOB NOT NULL,"
    " parent_hash BLOB NOT NULL, parent INTEGER NOT NULL, first_block INTEGER NOT NULL,"
    " block_tokens INTEGER NOT NULL, blocks INTEGER NOT NULL, file_bytes INTEGER NOT NULL,"
    " tokens BLOB NOT NULL);"
    "CREATE INDEX segments_by_parent ON segments(parent);"
    "CREATE TABLE blocks(hash BLOB PRIMARY KEY, segment INTEGER NOT NULL, slot INTEGER NOT NULL)"
    " WITHOUT ROWID;"
    "CREATE INDEX blocks_by_segment ON blocks(segment);"
    "CREATE TABLE frontiers(id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, fingerprint BLOB NOT NULL,"
    " base BLOB NOT NULL, segment INTEGER NOT NULL, parent INTEGER NOT NULL, position INTEGER NOT NULL,"
    " block_tokens INTEGER NOT NULL, file_bytes INTEGER NOT NULL, hits REAL NOT NULL,"
    " created INTEGER NOT NULL, used INTEGER NOT NULL, pinned INTEGER NOT NULL, anchor INTEGER NOT NULL,"
    " reason INTEGER NOT NULL, tail BLOB NOT NULL);"
    "CREATE INDEX frontiers_by_base ON frontiers(base, position);"
    "CREATE INDEX frontiers_by_segment ON frontiers(segment);"
    "CREATE INDEX frontiers_by_parent ON frontiers(parent);"
    "CREATE TABLE borders(hash BLOB NOT NULL, prefix BLOB NOT NULL, tokens INTEGER NOT NULL,"
    " frontier INTEGER NOT NULL, PRIMARY KEY(hash, prefix)) WITHOUT ROWID;"
    "CREATE INDEX borders_by_frontier ON borders(frontier);"
    "CREATE TABLE replies(id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, file_bytes INTEGER NOT NULL,"
    " created INTEGER NOT NULL);"
    "CREATE TABLE reply_keys(key BLOB PRIMARY KEY, reply INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX reply_keys_by_reply ON reply_keys(reply);";

#define DS4_SEGMENT_COLUMNS \
  "id, name, fingerprint, parent_hash, parent, first_block, block_tokens, blocks, file_bytes"
#define DS4_FRONTIER_COLUMNS                                                                               \
  "id, key, fingerprint, base, segment, parent, position, block_tokens, file_bytes, hits, created, used, " \
  "pinned, anchor, reason, tail"

Error nonsense(const char* what) {
  return fail(ErrorCode::format, "the index is damaged: {} does not make sense", what);
}

std::optional<std::vector<Token>> tokens_of(std::span<const std::byte> blob) {
  if (blob.size() % sizeof(Token) != 0) return std::nullopt;
  std::vector<Token> tokens(blob.size() / sizeof(Token));
  if (!blob.empty()) std::memcpy(tokens.data(), blob.data(), blob.size());
  return tokens;
}

int64_t as_integer(uint64_t value) {
  return static_cast<int64_t>(value);
}

Result<SegmentRow> read_segment(const Query& query, bool with_tokens) {
  const auto name = query.hash(1), fingerprint = query.hash(2), parent_hash = query.hash(3);
  const int64_t first = query.integer(5), tokens = query.integer(6), blocks = query.integer(7);
  const int64_t bytes = query.integer(8);
  if (!name || !fingerprint || !parent_hash || first < 0 || tokens <= 0 ||
      tokens > int64_t{most_block_tokens} || blocks <= 0 || blocks > int64_t{blocks_per_segment} ||
      bytes < 0) {
    return nonsense("a segment");
  }
  SegmentRow row{query.integer(0), *name, *fingerprint, *parent_hash, query.integer(4)};
  row.first_block = static_cast<uint64_t>(first);
  row.block_tokens = static_cast<uint32_t>(tokens);
  row.blocks = static_cast<uint32_t>(blocks);
  row.file_bytes = static_cast<uint64_t>(bytes);
  if (with_tokens) {
    auto all = tokens_of(query.blob(9));
    if (!all || all->size() != size_t{row.blocks} * row.block_tokens) return nonsense("a segment");
    Hash128 last = row.parent_hash;
    for (size_t i = 0; i < row.blocks; ++i) {
      last = Chain::next(last, std::span(*all).subspan(i * row.block_tokens, row.block_tokens));
    }
    if (SegmentHeader::name_of(row.parent_hash, last) != row.name) return nonsense("a segment");
    row.tokens = std::move(*all);
  }
  return row;
}

Result<FrontierRow> read_frontier(const Query& query) {
  const auto key = query.hash(1), fingerprint = query.hash(2), base = query.hash(3);
  const int64_t position = query.integer(6), tokens = query.integer(7), bytes = query.integer(8);
  const int64_t reason = query.integer(14);
  auto tail = tokens_of(query.blob(15));
  if (!key || !fingerprint || !base || position <= 0 || tokens <= 0 || tokens > int64_t{most_block_tokens} ||
      bytes < 0 || !tail || static_cast<int64_t>(tail->size()) != position % tokens || reason < 0 ||
      reason > static_cast<int64_t>(SaveReason::turn) ||
      Chain::key_of(*base, *tail, static_cast<uint64_t>(position)) != *key) {
    return nonsense("a frontier");
  }
  FrontierRow row{query.integer(0), *key, *fingerprint, *base, query.integer(4), query.integer(5)};
  row.position = static_cast<uint64_t>(position);
  row.block_tokens = static_cast<uint32_t>(tokens);
  row.file_bytes = static_cast<uint64_t>(bytes);
  row.hits = query.real(9);
  if (!std::isfinite(row.hits) || row.hits < 0) row.hits = 0;
  row.created = query.integer(10);
  row.used = query.integer(11);
  row.pinned = query.integer(12) != 0;
  row.anchor = query.integer(13) != 0;
  row.reason = static_cast<SaveReason>(reason);
  row.tail = std::move(*tail);
  return row;
}

template <class Row, class Read>
Result<std::vector<Row>> read_all(Result<Query> query, const Read& read) {
  if (!query) return query.error();
  std::vector<Row> rows;
  while (true) {
    DS4_ASSIGN(const bool more, query->step());
    if (!more) return rows;
    DS4_ASSIGN(Row row, read(*query));
    rows.push_back(std::move(row));
  }
}

template <class Row, class Read>
Result<std::optional<Row>> read_one(Result<Query> query, const Read& read) {
  if (!query) return query.error();
  DS4_ASSIGN(const bool found, query->step());
  if (!found) return std::optional<Row>();
  DS4_ASSIGN(Row row, read(*query));
  return std::optional(std::move(row));
}

Result<ReplyRow> read_reply(const Query& query) {
  const auto name = query.hash(1);
  if (!name || query.integer(2) < 0) return nonsense("a reply");
  return ReplyRow{query.integer(0), *name, static_cast<uint64_t>(query.integer(2)), query.integer(3)};
}

Result<int64_t> read_integer(Database& database, const char* sql) {
  DS4_ASSIGN(Query query, database.query(sql));
  DS4_ASSIGN(const bool found, query.step());
  if (!found) return nonsense("its state");
  return query.integer(0);
}

}  // namespace

Result<StoreIndex> StoreIndex::open(const std::string& path) {
  // Journals get the rights of the file; SQLite would create that with others.
  Descriptor created(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!created.valid()) return system_error("cannot open", path, errno);
  created.close();
  DS4_ASSIGN(Database database, Database::open(path));
  DS4_TRY(database.execute(settings));
  StoreIndex index(std::move(database));
  DS4_ASSIGN(const int64_t id, read_integer(index.database_, "PRAGMA application_id"));
  if (id == 0) {
    DS4_ASSIGN(const int64_t tables, read_integer(index.database_, "SELECT count(*) FROM sqlite_schema"));
    if (tables != 0) return nonsense("its schema");
    DS4_TRY(index.create());
    return index;
  }
  DS4_ASSIGN(const int64_t version, read_integer(index.database_, "PRAGMA user_version"));
  if (id != application_id || version != schema_version) {
    return fail(ErrorCode::format, "the index has the version {} of another program", version);
  }
  DS4_TRY(index.check());
  return index;
}

Result<void> StoreIndex::check() {
  // Another schema would make searches miss what is there.
  std::string found;
  {
    DS4_ASSIGN(
        Query statements,
        database_.query("SELECT CAST(sql AS BLOB) FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"));
    while (true) {
      DS4_ASSIGN(const bool more, statements.step());
      if (!more) break;
      const auto sql = statements.blob(0);
      found.append(reinterpret_cast<const char*>(sql.data()), sql.size());
      found += ';';
    }
  }
  if (found != schema) return nonsense("its schema");
  DS4_ASSIGN(Query pages, database_.query("PRAGMA integrity_check(1)"));
  DS4_ASSIGN(const bool checked, pages.step());
  const auto verdict = pages.blob(0);
  if (!checked || verdict.size() != 2 || std::memcmp(verdict.data(), "ok", 2) != 0) return nonsense("a page");
  return {};
}

Result<void> StoreIndex::create() {
  DS4_ASSIGN(Transaction transaction, Transaction::begin(database_));
  DS4_ASSIGN(const int64_t id, read_integer(database_, "PRAGMA application_id"));
  if (id == application_id) return {};  // another process was faster
  DS4_TRY(database_.execute(schema));
  DS4_TRY(database_.execute(
      fmt::format("PRAGMA application_id={};PRAGMA user_version={}", application_id, schema_version)
          .c_str()));
  return transaction.commit();
}

Result<int64_t> StoreIndex::add_segment(const SegmentHeader& header, uint64_t file_bytes) {
  int64_t parent = 0;
  if (header.first_block > 0) {
    DS4_ASSIGN(const auto before, find_block(header.parent));
    if (!before) return nonsense("the beginning of a segment");
    parent = before->segment;
  }
  const std::vector<Hash128> chain = header.chain();
  DS4_TRY(
      database_.run("INSERT INTO segments(name, fingerprint, parent_hash, parent, first_block, block_tokens,"
                    " blocks, file_bytes, tokens) VALUES(?,?,?,?,?,?,?,?,?)",
                    header.name(), header.fingerprint, header.parent, parent, as_integer(header.first_block),
                    int64_t{header.block_tokens}, as_integer(header.blocks()), as_integer(file_bytes),
                    std::as_bytes(std::span(header.tokens))));
  const int64_t id = database_.last_id();
  for (size_t i = 0; i < header.blocks(); ++i) {
    DS4_TRY(database_.run("INSERT INTO blocks(hash, segment, slot) VALUES(?,?,?)", chain[i + 1], id,
                          as_integer(i)));
  }
  return id;
}

Result<std::optional<SegmentRow>> StoreIndex::segment(int64_t id) {
  return read_one<SegmentRow>(
      database_.query("SELECT " DS4_SEGMENT_COLUMNS ", tokens FROM segments WHERE id=?", id),
      [](const Query& query) { return read_segment(query, true); });
}

Result<std::vector<SegmentRow>> StoreIndex::segments() {
  return read_all<SegmentRow>(database_.query("SELECT " DS4_SEGMENT_COLUMNS " FROM segments"),
                              [](const Query& query) { return read_segment(query, false); });
}

Result<std::vector<SegmentRow>> StoreIndex::children_of(int64_t segment) {
  return read_all<SegmentRow>(
      database_.query("SELECT " DS4_SEGMENT_COLUMNS " FROM segments WHERE parent=?", segment),
      [](const Query& query) { return read_segment(query, false); });
}

Result<std::optional<BlockPlace>> StoreIndex::find_block(const Hash128& hash) {
  return read_one<BlockPlace>(database_.query("SELECT segment, slot FROM blocks WHERE hash=?", hash),
                              [](const Query& query) -> Result<BlockPlace> {
                                const int64_t slot = query.integer(1);
                                if (query.integer(0) <= 0 || slot < 0 || slot >= int64_t{blocks_per_segment})
                                  return nonsense("a block");
                                return BlockPlace{query.integer(0), static_cast<uint32_t>(slot)};
                              });
}

Result<void> StoreIndex::remove_segment(int64_t id) {
  DS4_TRY(database_.run("DELETE FROM blocks WHERE segment=?", id));
  return database_.run("DELETE FROM segments WHERE id=?", id);
}

Result<int64_t> StoreIndex::add_frontier(const FrontierHeader& header, uint64_t file_bytes, int64_t parent,
                                         bool pinned, std::span<const int64_t> children,
                                         std::span<const Hash128> prefixes) {
  int64_t segment = 0;
  if (header.position >= header.block_tokens) {
    DS4_ASSIGN(const auto last, find_block(header.base));
    if (!last) return nonsense("the blocks of a frontier");
    segment = last->segment;
  }
  DS4_TRY(database_.run(
      "INSERT INTO frontiers(key, fingerprint, base, segment, parent, position, block_tokens, file_bytes, "
      "hits,"
      " created, used, pinned, anchor, reason, tail) VALUES(?,?,?,?,?,?,?,?,0,?,?,?,?,?,?)",
      header.name(), header.fingerprint, header.base, segment, parent, as_integer(header.position),
      int64_t{header.block_tokens}, as_integer(file_bytes), as_integer(header.created),
      as_integer(header.created), int64_t{pinned}, int64_t{header.anchor},
      static_cast<int64_t>(header.reason), std::as_bytes(std::span(header.tail))));
  const int64_t id = database_.last_id();
  for (const int64_t child : children) {
    DS4_TRY(database_.run("UPDATE frontiers SET parent=? WHERE id=?", id, child));
  }
  for (size_t i = 0; i < std::min(header.borders.size(), prefixes.size()); ++i) {
    DS4_TRY(database_.run("INSERT OR REPLACE INTO borders(hash, prefix, tokens, frontier) VALUES(?,?,?,?)",
                          header.borders[i].hash, prefixes[i], as_integer(header.borders[i].tokens), id));
  }
  return id;
}

Result<std::optional<FrontierRow>> StoreIndex::frontier(const Hash128& key) {
  return read_one<FrontierRow>(
      database_.query("SELECT " DS4_FRONTIER_COLUMNS " FROM frontiers WHERE key=?", key), read_frontier);
}

Result<std::optional<FrontierRow>> StoreIndex::frontier(int64_t id) {
  return read_one<FrontierRow>(
      database_.query("SELECT " DS4_FRONTIER_COLUMNS " FROM frontiers WHERE id=?", id), read_frontier);
}

Result<std::vector<FrontierRow>> StoreIndex::frontiers() {
  return read_all<FrontierRow>(database_.query("SELECT " DS4_FRONTIER_COLUMNS " FROM frontiers ORDER BY id"),
                               read_frontier);
}

Result<std::vector<FrontierRow>> StoreIndex::frontiers_at(const Hash128& base) {
  return read_all<FrontierRow>(
      database_.query("SELECT " DS4_FRONTIER_COLUMNS " FROM frontiers WHERE base=? ORDER BY position DESC",
                      base),
      read_frontier);
}

Result<std::vector<FrontierRow>> StoreIndex::frontiers_on(int64_t segment) {
  return read_all<FrontierRow>(
      database_.query("SELECT " DS4_FRONTIER_COLUMNS " FROM frontiers WHERE segment=?", segment),
      read_frontier);
}

Result<std::vector<FrontierRow>> StoreIndex::children_of_frontier(int64_t id) {
  return read_all<FrontierRow>(
      database_.query("SELECT " DS4_FRONTIER_COLUMNS " FROM frontiers WHERE parent=?", id), read_frontier);
}

Result<void> StoreIndex::remove_frontier(const FrontierRow& row) {
  DS4_ASSIGN(const auto children, children_of_frontier(row.id));
  if (!children.empty()) {
    DS4_TRY(database_.run("UPDATE borders SET frontier=? WHERE frontier=?", children.front().id, row.id));
    DS4_TRY(database_.run("UPDATE frontiers SET parent=? WHERE parent=?", row.parent, row.id));
  } else {
    DS4_ASSIGN(const auto parent, frontier(row.parent));
    if (parent) {
      DS4_TRY(database_.run("UPDATE borders SET frontier=? WHERE frontier=? AND tokens<=?", parent->id,
                            row.id, as_integer(parent->position)));
    }
    DS4_TRY(database_.run("DELETE FROM borders WHERE frontier=?", row.id));
  }
  return database_.run("DELETE FROM frontiers WHERE id=?", row.id);
}

Result<void> StoreIndex::set_use(int64_t id, double hits, int64_t used) {
  return database_.run("UPDATE frontiers SET hits=?, used=? WHERE id=?", hits, used, id);
}

Result<void> StoreIndex::set_pinned(int64_t id, bool pinned) {
  return database_.run("UPDATE frontiers SET pinned=? WHERE id=?", int64_t{pinned}, id);
}

Result<std::vector<BorderRow>> StoreIndex::find_border(const Hash128& hash) {
  return read_all<BorderRow>(
      database_.query("SELECT prefix, tokens, frontier FROM borders WHERE hash=?", hash),
      [](const Query& query) -> Result<BorderRow> {
        const auto prefix = query.hash(0);
        if (!prefix || query.integer(1) < 0) return nonsense("a border");
        return BorderRow{*prefix, static_cast<uint64_t>(query.integer(1)), query.integer(2)};
      });
}

Result<void> StoreIndex::add_reply(const ReplyHeader& header, uint64_t file_bytes) {
  DS4_TRY(database_.run("INSERT OR REPLACE INTO replies(name, file_bytes, created) VALUES(?,?,?)",
                        header.name(), as_integer(file_bytes), as_integer(header.created)));
  const int64_t id = database_.last_id();
  for (const Hash128& key : header.keys) {
    DS4_TRY(database_.run("INSERT OR REPLACE INTO reply_keys(key, reply) VALUES(?,?)", key, id));
  }
  return {};
}

Result<std::optional<ReplyRow>> StoreIndex::find_reply(const Hash128& key) {
  return read_one<ReplyRow>(database_.query("SELECT replies.id, name, file_bytes, created FROM reply_keys"
                                            " JOIN replies ON replies.id=reply WHERE key=?",
                                            key),
                            read_reply);
}

Result<std::vector<ReplyRow>> StoreIndex::replies() {
  return read_all<ReplyRow>(
      database_.query("SELECT id, name, file_bytes, created FROM replies ORDER BY created, id"), read_reply);
}

Result<void> StoreIndex::remove_reply(int64_t id) {
  DS4_TRY(database_.run("DELETE FROM reply_keys WHERE reply=?", id));
  return database_.run("DELETE FROM replies WHERE id=?", id);
}

Result<StoreIndex::Totals> StoreIndex::totals() {
  DS4_ASSIGN(
      Query query,
      database_.query("SELECT (SELECT count(*) FROM segments), (SELECT count(*) FROM frontiers),"
                      " (SELECT count(*) FROM replies),"
                      " (SELECT total(file_bytes) FROM segments) + (SELECT total(file_bytes) FROM frontiers),"
                      " (SELECT total(file_bytes) FROM replies)"));
  DS4_ASSIGN(const bool found, query.step());
  const double states = query.real(3), replies = query.real(4);
  if (!found || !(states >= 0 && states < 0x1p62) || !(replies >= 0 && replies < 0x1p62)) {
    return nonsense("a size");
  }
  return Totals{static_cast<uint64_t>(query.integer(0)), static_cast<uint64_t>(query.integer(1)),
                static_cast<uint64_t>(query.integer(2)), static_cast<uint64_t>(states),
                static_cast<uint64_t>(replies)};
}

}  // namespace ds4::store
