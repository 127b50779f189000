// How states and replies get to the disk.
#include <algorithm>
#include <chrono>
#include <set>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "store/state_store.hpp"

namespace ds4::store {
namespace {

// What a row of each kind takes in the index, with its places in the orders.
constexpr uint64_t segment_row_bytes = 1024;
constexpr uint64_t frontier_row_bytes = 4096;
constexpr uint64_t border_row_bytes = 160;

/// What is written builds on this block. That it was dropped meanwhile is no damage of the index.
Result<void> check_is_there(StoreIndex& index, const Hash128& hash) {
  DS4_ASSIGN(const auto place, index.find_block(hash));
  if (!place) return fail(ErrorCode::io, "the state that this one continues has been dropped meanwhile");
  return {};
}

}  // namespace

Result<WriteReport> StateStore::write(const StateSource& source, const WriteInfo& info) {
  const auto begin = std::chrono::steady_clock::now();
  auto report = catch_bad_alloc("writing a state to disk", [&]() -> Result<WriteReport> {
    if (source.tokens().size() < settings_.policy.min_tokens) {
      return WriteReport{WriteReport::Outcome::too_short};
    }
    WriteInfo whole = info;
    if (whole.borders.empty()) whole.borders = source.borders();
    DS4_ASSIGN(const WriterGuard guard, lock_for_writing());
    return write_locked(source, whole);
  });
  if (report)
    report->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  count([&](StoreStats& stats) {
    if (!report) {
      ++stats.write_failures;
    } else if (report->outcome == WriteReport::Outcome::written) {
      ++stats.writes;
      stats.bytes_written += report->bytes_written;
    } else {
      ++stats.writes_skipped;
    }
  });
  if (!report) {
    log_rarely(fmt::format("write {}", static_cast<int>(report.error().code)),
               fmt::format("KV disk cache: a state of {} tokens was not stored: {}", source.tokens().size(),
                           report.error().message));
  }
  return report;
}

Result<StateStore::Known> StateStore::look_up(const Chain& chain, std::span<const Token> tokens) {
  const auto work = [&](StoreIndex& index) -> Result<Known> {
    Known known;
    DS4_ASSIGN(const auto row, index.frontier(chain.key()));
    if (row) {
      known.frontier = true;
      // One that cannot be found or leads nowhere would never be written again.
      DS4_TRY(lineage_of(index, *row));
      DS4_ASSIGN(const auto found,
                 nearest_frontier(index, chain, settings_.block_tokens, tokens, tokens.size()));
      if (!found || found->key != row->key) {
        return fail(ErrorCode::format, "the index is damaged: a state cannot be found");
      }
      DS4_TRY(index.set_use(row->id, decayed_hits(row->hits, row->used, now()), now()));
      return known;
    }
    DS4_ASSIGN(known.blocks, known_blocks(index, chain));
    if (known.blocks > 0) {
      DS4_ASSIGN(const auto place, index.find_block(chain.hash(known.blocks)));
      known.last_segment = place ? place->segment : 0;
    }
    DS4_ASSIGN(const auto nearest,
               nearest_frontier(index, chain, settings_.block_tokens, tokens, tokens.size()));
    if (nearest) known.nearest = nearest->position;
    return known;
  };
  return with_index(Held::writer_lock, work);
}

Result<WriteReport> StateStore::write_locked(const StateSource& source, const WriteInfo& info) {
  const std::span<const Token> tokens = source.tokens();
  Chain chain(fingerprint_, settings_.block_tokens);
  chain.append(tokens);
  WriteReport report{WriteReport::Outcome::known, chain.key()};
  DS4_ASSIGN(const Known known, look_up(chain, tokens));
  if (known.frontier) return report;
  if (!info.forced && known.nearest > 0 && tokens.size() - known.nearest < settings_.min_growth_tokens) {
    report.outcome = WriteReport::Outcome::too_close;
    return report;
  }

  const size_t missing = chain.blocks() - known.blocks;
  const auto blocks = checked_multiply(settings_.block_bytes, missing);
  const uint64_t headers = missing * (segment_row_bytes + 8 * settings_.block_tokens) + frontier_row_bytes +
                           info.borders.size() * border_row_bytes;
  const auto rest = checked_add(settings_.frontier_bytes(tokens.size()), headers);
  const auto total = blocks && rest ? checked_add(*blocks, *rest) : std::nullopt;
  DS4_TRY(make_room(total.value_or(UINT64_MAX), known.last_segment));

  NewFiles files;
  const auto written = catch_bad_alloc("writing a state to disk",
                                       [&] { return write_files(source, chain, info, known.blocks, files); });
  if (!written) {
    remove_unindexed(files);
    return written.error();
  }
  for (const SegmentHeader& segment : files.segments) {
    report.bytes_written += segment.file_bytes();
    report.blocks_written += segment.blocks();
  }
  report.bytes_written += files.frontier->file_bytes();
  if (const auto thinned = thin(chain.key()); !thinned) {
    log_rarely("thin", fmt::format("KV disk cache: {}", thinned.error().message));
  }
  report.outcome = WriteReport::Outcome::written;
  return report;
}

Result<void> StateStore::write_files(const StateSource& source, const Chain& chain, const WriteInfo& info,
                                     size_t known_blocks, NewFiles& files) {
  for (size_t first = known_blocks; first < chain.blocks();) {
    const size_t range_end = (first / blocks_per_segment + 1) * blocks_per_segment;
    const size_t last = std::min(range_end, chain.blocks());
    DS4_ASSIGN(SegmentHeader segment, write_segment(source, chain, first, last));
    files.segments.push_back(std::move(segment));
    first = last;
  }
  DS4_ASSIGN(files.frontier, write_frontier(source, chain, info));
  // Names first: whoever finds an entry in the index finds its files, also after a power failure.
  std::set<std::string> folders;
  for (const SegmentHeader& segment : files.segments) {
    if (folders.insert(segment.name().hex().substr(0, 2)).second) {
      DS4_TRY(folder_.sync_folder_of(FileKind::segment, segment.name()));
    }
  }
  DS4_TRY(folder_.sync_folder_of(FileKind::frontier, files.frontier->name()));
  return index_new(files.segments, *files.frontier, chain, source.tokens());
}

void StateStore::remove_unindexed(const NewFiles& files) {
  FileList gone;
  const auto work = [&](StoreIndex& index) -> Result<void> {
    gone.clear();
    for (const SegmentHeader& segment : files.segments) {
      DS4_ASSIGN(const auto place, index.find_block(segment.chain().back()));
      std::optional<SegmentRow> row;
      if (place) {
        DS4_ASSIGN(row, index.segment(place->segment));
      }
      if (!row || row->name != segment.name()) gone.push_back({FileKind::segment, segment.name(), 0});
    }
    if (!files.frontier) return {};
    DS4_ASSIGN(const auto frontier, index.frontier(files.frontier->name()));
    if (!frontier) gone.push_back({FileKind::frontier, files.frontier->name(), 0});
    return {};
  };
  if (with_index(Held::writer_lock, work)) unlink_all(gone);
}

Result<SegmentHeader> StateStore::write_segment(const StateSource& source, const Chain& chain, size_t first,
                                                size_t last) {
  SegmentHeader header;
  header.fingerprint = fingerprint_;
  header.parent = chain.hash(first);
  header.first_block = first;
  header.block_tokens = static_cast<uint32_t>(settings_.block_tokens);
  header.block_bytes = settings_.block_bytes;
  header.created = static_cast<uint64_t>(now());
  const auto tokens =
      source.tokens().subspan(first * settings_.block_tokens, (last - first) * settings_.block_tokens);
  header.tokens.assign(tokens.begin(), tokens.end());
  header.block_hashes.resize(last - first);
  const Hash128 name = header.name();
  DS4_ASSIGN(OutputFile file, folder_.create(FileKind::segment, name));
  std::vector<std::byte> block(settings_.block_bytes);
  uint64_t offset = header.header_bytes();
  for (size_t b = first; b < last; ++b) {
    DS4_TRY(source.export_block(b, block));
    header.block_hashes[b - first] = hash_of(block);
    DS4_TRY(file.write(offset, block));
    offset += block.size();
  }
  DS4_TRY(file.write(0, encode(header)));
  DS4_TRY(folder_.commit(file, FileKind::segment, name));
  return header;
}

Result<FrontierHeader> StateStore::write_frontier(const StateSource& source, const Chain& chain,
                                                  const WriteInfo& info) {
  FrontierHeader header;
  header.fingerprint = fingerprint_;
  header.base = chain.hash(chain.blocks());
  header.position = chain.position();
  header.block_tokens = static_cast<uint32_t>(settings_.block_tokens);
  header.payload_bytes = settings_.frontier_bytes(chain.position());
  header.created = static_cast<uint64_t>(now());
  header.reason = info.reason;
  header.anchor = info.anchor;
  header.tail.assign(chain.tail().begin(), chain.tail().end());
  // The last ones: what is before them belongs to shorter states as well.
  const size_t skipped = info.borders.size() > most_borders ? info.borders.size() - most_borders : 0;
  header.borders.assign(info.borders.begin() + static_cast<ptrdiff_t>(skipped), info.borders.end());
  uint64_t before = 0;
  for (const TextBorder& border : header.borders) {
    if (border.tokens < before || border.tokens > header.position) {
      return fail(ErrorCode::invalid_argument, "a border is not among the {} tokens of a state",
                  header.position);
    }
    before = border.tokens;
  }
  std::vector<std::byte> payload(header.payload_bytes);
  DS4_TRY(source.export_frontier(payload));
  header.payload_hash = hash_of(payload);
  const Hash128 name = header.name();
  DS4_ASSIGN(OutputFile file, folder_.create(FileKind::frontier, name));
  DS4_TRY(file.write(0, encode(header)));
  DS4_TRY(file.write(header.header_bytes(), payload));
  DS4_TRY(folder_.commit(file, FileKind::frontier, name));
  return header;
}

Result<void> StateStore::index_new(const std::vector<SegmentHeader>& segments, const FrontierHeader& frontier,
                                   const Chain& chain, std::span<const Token> tokens) {
  std::vector<Hash128> hashes;
  for (size_t b = 0; b <= chain.blocks(); ++b) hashes.push_back(chain.hash(b));
  const auto work = [&](StoreIndex& index) -> Result<void> {
    // An index that was made again in between has adopted the files.
    DS4_ASSIGN(const auto known, index.frontier(frontier.name()));
    if (known) return {};
    DS4_ASSIGN(Transaction transaction, Transaction::begin(index.database()));
    for (const SegmentHeader& segment : segments) {
      DS4_ASSIGN(const auto there, index.find_block(segment.chain().back()));
      if (there) continue;
      if (segment.first_block > 0) DS4_TRY(check_is_there(index, segment.parent));
      DS4_TRY(index.add_segment(segment, segment.file_bytes()));
    }
    if (chain.blocks() > 0) DS4_TRY(check_is_there(index, frontier.base));
    DS4_TRY(insert_frontier(index, frontier, frontier.file_bytes(), false, hashes, tokens));
    return transaction.commit();
  };
  return with_index(Held::writer_lock, work);
}

Result<void> StateStore::thin(const Hash128& key) {
  std::vector<FrontierRow> gone;
  const KeySet in_use = keys_in_use();
  const auto work = [&](StoreIndex& index) -> Result<void> {
    gone.clear();
    std::vector<FrontierRow> unshared;  // the newest first
    DS4_ASSIGN(auto row, index.frontier(key));
    uint64_t above = UINT64_MAX;
    while (row && row->position < above) {
      above = row->position;
      const int64_t parent = row->parent;
      const bool spared = row->pinned || row->anchor || in_use.contains(row->key);
      if (!spared) unshared.push_back(std::move(*row));
      DS4_ASSIGN(row, index.frontier(parent));
      if (!row) break;
      DS4_ASSIGN(const auto children, index.children_of_frontier(row->id));
      if (children.size() > 1) break;  // from here on it belongs to others too
    }
    std::vector<uint64_t> positions;
    positions.reserve(unshared.size());
    std::reverse(unshared.begin(), unshared.end());
    for (const FrontierRow& one : unshared) positions.push_back(one.position);
    for (const size_t i : plan_thinning(positions)) gone.push_back(unshared[i]);
    return {};
  };
  DS4_TRY(with_index(Held::writer_lock, work));
  if (gone.empty()) return {};
  DS4_TRY(remove_rows_and_files(gone, {}, Held::writer_lock));
  count([&](StoreStats& stats) { stats.thinned += gone.size(); });
  return {};
}

Hash128 StateStore::reply_key(std::string_view key) const {
  Hasher hasher;
  hasher.add(fingerprint_);
  hasher.add(key);
  return hasher.digest();
}

Result<void> StateStore::put_reply(std::span<const std::string_view> keys, std::span<const std::byte> bytes) {
  if (keys.empty()) return {};
  if (keys.size() > most_reply_keys || bytes.size() > most_reply_bytes) {
    return fail(ErrorCode::invalid_argument, "a reply of {} bytes with {} keys is too large to be kept",
                bytes.size(), keys.size());
  }
  return catch_bad_alloc("writing a reply to disk", [&]() -> Result<void> {
    ReplyHeader header;
    header.created = static_cast<uint64_t>(now());
    for (const std::string_view key : keys) header.keys.push_back(reply_key(key));
    header.payload_bytes = static_cast<uint32_t>(bytes.size());
    header.payload_hash = hash_of(bytes);
    const Hash128 name = header.name();
    const uint64_t limit = std::min(settings_.reply_bytes, budget_bytes() / 16);
    if (header.file_bytes() > limit) return {};
    DS4_ASSIGN(const WriterGuard guard, lock_for_writing());
    std::vector<ReplyRow> oldest;
    bool known = false;
    const auto select = [&](StoreIndex& index) -> Result<void> {
      oldest.clear();
      known = false;
      DS4_ASSIGN(const auto there, index.find_reply(header.keys.front()));
      known = there && there->name == name;
      DS4_ASSIGN(const auto totals, index.totals());
      uint64_t total = totals.reply_bytes + header.file_bytes();
      if (known || total <= limit) return {};
      DS4_ASSIGN(const auto rows, index.replies());
      for (const ReplyRow& row : rows) {
        if (total <= limit) break;
        oldest.push_back(row);
        total -= row.file_bytes;
      }
      return {};
    };
    DS4_TRY(with_index(Held::writer_lock, select));
    const auto add = [&](StoreIndex& index) -> Result<void> {
      DS4_ASSIGN(Transaction transaction, Transaction::begin(index.database()));
      DS4_TRY(index.add_reply(header, header.file_bytes()));
      return transaction.commit();
    };
    if (known) return with_index(Held::writer_lock, add);
    const auto forget = [&](StoreIndex& index) -> Result<void> {
      for (const ReplyRow& row : oldest) DS4_TRY(index.remove_reply(row.id));
      return {};
    };
    DS4_TRY(with_index(Held::writer_lock, forget));
    for (const ReplyRow& row : oldest) folder_.remove(FileKind::reply, row.name);
    DS4_TRY(make_room(header.file_bytes() + frontier_row_bytes, 0));
    DS4_ASSIGN(OutputFile file, folder_.create(FileKind::reply, name));
    DS4_TRY(file.write(0, encode(header)));
    DS4_TRY(file.write(header.header_bytes(), bytes));
    DS4_TRY(folder_.commit(file, FileKind::reply, name));
    auto done = folder_.sync_folder_of(FileKind::reply, name);
    if (done) done = with_index(Held::writer_lock, add);
    if (!done) {
      const auto row = with_index(Held::writer_lock,
                                  [&](StoreIndex& index) { return index.find_reply(header.keys.front()); });
      if (row && (!*row || (*row)->name != name)) unlink_all({{FileKind::reply, name, 0}});
    }
    return done;
  });
}

std::optional<std::vector<std::byte>> StateStore::get_reply(std::string_view key) {
  const Hash128 hashed = reply_key(key);
  std::optional<ReplyRow> row;
  const auto look = [&](StoreIndex& index) -> Result<void> {
    DS4_ASSIGN(row, index.find_reply(hashed));
    return {};
  };
  if (const auto looked = with_index(Held::nothing, look); !looked) {
    log_rarely("reply", fmt::format("KV disk cache: {}", looked.error().message));
    return std::nullopt;
  }
  if (!row) return std::nullopt;
  const Hash128 name = row->name;
  auto bytes = catch_bad_alloc("a reply from disk", [&]() -> Result<std::vector<std::byte>> {
    DS4_ASSIGN(const InputFile file, InputFile::open(folder_.path_of(FileKind::reply, name)));
    DS4_ASSIGN(const auto header_bytes, file.read_header(FileKind::reply));
    DS4_ASSIGN(const ReplyHeader header, parse_reply(header_bytes, file.bytes));
    std::vector<std::byte> payload(header.payload_bytes);
    DS4_TRY(file.read(header_bytes.size(), payload));
    const bool has_key = std::find(header.keys.begin(), header.keys.end(), hashed) != header.keys.end();
    if (!has_key || hash_of(payload) != header.payload_hash)
      return fail(ErrorCode::format, "a checksum is wrong");
    return payload;
  });
  if (bytes) return std::move(*bytes);
  const Error& error = bytes.error();
  // One that has been evicted meanwhile is not damaged.
  const auto is_indexed = [&] { return with_index(Held::nothing, look) && row && row->name == name; };
  if (is_damage(error) || (error.code == ErrorCode::not_found && is_indexed())) {
    drop_reply(name, error.message);
  } else if (error.code != ErrorCode::not_found) {
    log_rarely("reply", fmt::format("KV disk cache: {}", error.message));
  }
  return std::nullopt;
}

}  // namespace ds4::store
