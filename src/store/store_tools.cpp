// What people ask a store for: lists, checks, pins, purges.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/error.hpp"
#include "store/store_directory.hpp"

namespace ds4::store {
namespace {

constexpr size_t piece_bytes = size_t{1} << 20;

/// The hash of a part of a file.
Result<Hash128> hash_part(const InputFile& file, uint64_t offset, uint64_t bytes) {
  std::vector<std::byte> piece(std::min<uint64_t>(bytes, piece_bytes));
  Hasher hasher;
  while (bytes > 0) {
    const auto part = std::span(piece).first(std::min<uint64_t>(bytes, piece.size()));
    DS4_TRY(file.read(offset, part));
    hasher.add(part);
    offset += part.size();
    bytes -= part.size();
  }
  return hasher.digest();
}

Result<void> check_part(const InputFile& file, uint64_t offset, uint64_t bytes, const Hash128& expected) {
  DS4_ASSIGN(const Hash128 hash, hash_part(file, offset, bytes));
  if (hash == expected) return {};
  return fail(ErrorCode::format, "a checksum is wrong");
}

Result<Hash128> name_in(FileKind kind, std::span<const std::byte> header, uint64_t file_bytes) {
  if (kind == FileKind::segment) {
    DS4_ASSIGN(const auto segment, parse_segment(header, file_bytes));
    return segment.name();
  }
  if (kind == FileKind::frontier) {
    DS4_ASSIGN(const auto frontier, parse_frontier(header, file_bytes));
    return frontier.name();
  }
  DS4_ASSIGN(const auto reply, parse_reply(header, file_bytes));
  return reply.name();
}

StoreEntry entry_of(const FrontierRow& row, int64_t now) {
  StoreEntry entry{row.key, row.fingerprint, row.position, row.reason, row.pinned, row.anchor};
  entry.hits = decayed_hits(row.hits, row.used, now);
  entry.created = row.created;
  entry.used = row.used;
  entry.frontier_bytes = row.file_bytes;
  return entry;
}

bool matches(const PurgeFilter& filter, const FrontierRow& row, int64_t now) {
  if (row.pinned && !filter.pinned_too) return false;
  if (filter.key && row.key != *filter.key) return false;
  if (filter.fingerprint && row.fingerprint != *filter.fingerprint) return false;
  return !filter.unused_for_s || now - row.used >= *filter.unused_for_s;
}

}  // namespace

Result<std::vector<StoreEntry>> StoreDirectory::list() {
  std::vector<FrontierRow> frontiers;
  std::vector<SegmentRow> segments;
  const auto work = [&](StoreIndex& index) -> Result<void> {
    DS4_ASSIGN(frontiers, index.frontiers());
    DS4_ASSIGN(segments, index.segments());
    return {};
  };
  DS4_TRY(with_index(Held::nothing, work));
  std::map<int64_t, const SegmentRow*> by_id;
  std::map<int64_t, size_t> needed_by;
  for (const SegmentRow& segment : segments) {
    by_id[segment.id] = &segment;
    ++needed_by[segment.parent];
  }
  std::map<int64_t, Hash128> keys;
  for (const FrontierRow& row : frontiers) {
    keys[row.id] = row.key;
    ++needed_by[row.segment];
  }
  std::vector<StoreEntry> entries;
  for (const FrontierRow& row : frontiers) {
    StoreEntry entry = entry_of(row, now());
    entry.own_bytes = row.file_bytes;
    bool own = true;
    size_t steps = 0;
    for (auto at = by_id.find(row.segment); at != by_id.end() && steps++ < segments.size();
         at = by_id.find(at->second->parent)) {
      own = own && needed_by[at->first] == 1;
      entry.segment_bytes += at->second->file_bytes;
      if (own) entry.own_bytes += at->second->file_bytes;
    }
    if (const auto parent = keys.find(row.parent); parent != keys.end()) entry.parent = parent->second;
    entries.push_back(entry);
  }
  return entries;
}

Result<std::optional<StoreEntry>> StoreDirectory::show(const Hash128& key) {
  DS4_ASSIGN(const auto entries, list());
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const StoreEntry& entry) { return entry.key == key; });
  return found == entries.end() ? std::optional<StoreEntry>() : *found;
}

Result<void> StoreDirectory::check_payload(const InputFile& file, FileKind kind,
                                           std::span<const std::byte> header) {
  switch (kind) {
    case FileKind::segment: {
      DS4_ASSIGN(const auto segment, parse_segment(header, file.bytes));
      for (size_t i = 0; i < segment.blocks(); ++i) {
        DS4_TRY(check_part(file, header.size() + i * segment.block_bytes, segment.block_bytes,
                           segment.block_hashes[i]));
      }
      return {};
    }
    case FileKind::frontier: {
      DS4_ASSIGN(const auto frontier, parse_frontier(header, file.bytes));
      return check_part(file, header.size(), frontier.payload_bytes, frontier.payload_hash);
    }
    case FileKind::reply: {
      DS4_ASSIGN(const auto reply, parse_reply(header, file.bytes));
      return check_part(file, header.size(), reply.payload_bytes, reply.payload_hash);
    }
  }
  return {};
}

Result<void> StoreDirectory::check_file(FileKind kind, const Hash128& name, VerifyReport& report) {
  const std::string path = folder_.path_of(kind, name);
  const auto checked = [&]() -> Result<void> {
    DS4_ASSIGN(const InputFile file, InputFile::open(path));
    ++report.files;
    report.bytes += file.bytes;
    DS4_ASSIGN(const auto header, file.read_header(kind));
    DS4_ASSIGN(const Hash128 own_name, name_in(kind, header, file.bytes));
    if (own_name != name) return fail(ErrorCode::format, "it has the name of another");
    return check_payload(file, kind, header);
  }();
  // What another process has evicted meanwhile is not damaged.
  if (checked || checked.error().code == ErrorCode::not_found) return {};
  report.damaged.push_back({kind, path, checked.error().message, !is_damage(checked.error())});
  return {};
}

Result<VerifyReport> StoreDirectory::verify(bool drop_damaged) {
  VerifyReport report;
  FileList files;
  const auto work = [&](StoreIndex& index) -> Result<void> {
    files.clear();
    DS4_ASSIGN(const auto segments, index.segments());
    for (const SegmentRow& row : segments) files.push_back({FileKind::segment, row.name, 0});
    DS4_ASSIGN(const auto frontiers, index.frontiers());
    for (const FrontierRow& row : frontiers) files.push_back({FileKind::frontier, row.key, 0});
    DS4_ASSIGN(const auto replies, index.replies());
    for (const ReplyRow& row : replies) files.push_back({FileKind::reply, row.name, 0});
    return {};
  };
  DS4_TRY(with_index(Held::nothing, work));
  for (const auto& file : files) {
    const size_t before = report.damaged.size();
    DS4_TRY(check_file(file.kind, file.name, report));
    if (!drop_damaged || report.damaged.size() == before || report.damaged.back().unreadable) continue;
    const std::string& reason = report.damaged.back().reason;
    if (file.kind == FileKind::segment) drop_segment(file.name, reason);
    if (file.kind == FileKind::frontier) drop(file.name, reason);
    if (file.kind == FileKind::reply) drop_reply(file.name, reason);
  }
  return report;
}

Result<void> StoreDirectory::set_pinned(const Hash128& key, bool pinned) {
  DS4_ASSIGN(const auto guard, lock_for_writing());
  const auto work = [&](StoreIndex& index) -> Result<void> {
    DS4_ASSIGN(const auto row, index.frontier(key));
    if (!row) return fail(ErrorCode::not_found, "there is no state {}", key.hex());
    return index.set_pinned(row->id, pinned);
  };
  DS4_TRY(with_index(Held::writer_lock, work));
  // Beside the file, so that a new index knows it too.
  const std::string marker = folder_.pin_path(key);
  if (!pinned) {
    unlink(marker.c_str());
    return {};
  }
  const Descriptor file(::open(marker.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return system_error("cannot create", marker, errno);
  return folder_.sync_folder_of(FileKind::frontier, key);
}

Result<uint64_t> StoreDirectory::purge(const PurgeFilter& filter) {
  DS4_ASSIGN(const auto guard, lock_for_writing());
  uint64_t count_gone = 0;
  FileList files;
  const auto work = [&](StoreIndex& index) -> Result<void> {
    files.clear();
    count_gone = 0;
    DS4_ASSIGN(Transaction transaction, Transaction::begin(index.database()));
    DS4_ASSIGN(const auto frontiers, index.frontiers());
    for (const FrontierRow& listed : frontiers) {
      if (!matches(filter, listed, now())) continue;
      // Its parent may have gone since.
      DS4_ASSIGN(const auto row, index.frontier(listed.key));
      if (!row) continue;
      DS4_TRY(index.remove_frontier(*row));
      files.push_back({FileKind::frontier, row->key, row->file_bytes});
      ++count_gone;
    }
    DS4_TRY(remove_unneeded_segments(index, files));
    if (filter.replies) {
      DS4_ASSIGN(const auto replies, index.replies());
      for (const ReplyRow& row : replies) {
        DS4_TRY(index.remove_reply(row.id));
        files.push_back({FileKind::reply, row.name, row.file_bytes});
      }
    }
    return transaction.commit();
  };
  DS4_TRY(with_index(Held::writer_lock, work));
  unlink_all(files);
  return count_gone;
}

}  // namespace ds4::store
