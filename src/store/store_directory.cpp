#include "store/store_directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <thread>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "store/recovery.hpp"

namespace ds4::store {
namespace {

constexpr int64_t log_interval_s = 60;
// What the journal of the index may grow by while something is written.
constexpr uint64_t most_slack_bytes = uint64_t{1} << 20;
// A reader does not wait for a writer; without an index it finds nothing.
constexpr std::chrono::milliseconds reader_patience{100};
// What is damaged goes while nobody writes what continues it; behind a writer that hangs only its rows go.
constexpr std::chrono::milliseconds drop_patience{2000};
constexpr std::chrono::milliseconds look_interval{5};

std::optional<std::pair<uint64_t, uint64_t>> identity_of(const std::string& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) return std::nullopt;
  return std::pair<uint64_t, uint64_t>(status.st_dev, status.st_ino);
}

}  // namespace

Result<std::unique_ptr<StoreDirectory>> StoreDirectory::open(StoreDirectoryOptions options) {
  DS4_ASSIGN(StoreFolder folder, StoreFolder::open(options.directory));
  std::unique_ptr<StoreDirectory> store(new StoreDirectory(std::move(options), std::move(folder)));
  DS4_TRY(store->start());
  return store;
}

Result<void> StoreDirectory::start() {
  auto guard = lock_for_writing();
  if (!guard) {
    // Another process is busy; it keeps the folder in order.
    const std::lock_guard index_guard(index_mutex_);
    return use_current_index(Held::nothing);
  }
  const auto work = [&](StoreIndex& index) -> Result<void> {
    DS4_TRY(recover(folder_, index));
    return {};
  };
  DS4_TRY(with_index(Held::writer_lock, work));
  if (auto room = make_room(0, 0); !room && room.error().code != ErrorCode::out_of_memory) return room;
  return {};
}

int64_t StoreDirectory::now() const {
  return options_.clock ? options_.clock() : static_cast<int64_t>(std::time(nullptr));
}

void StoreDirectory::log(std::string_view line) const {
  if (options_.log) options_.log(line);
}

void StoreDirectory::log_rarely(const std::string& kind, const std::string& line) {
  {
    const std::lock_guard guard(log_mutex_);
    const int64_t time = now();
    const auto [last, fresh] = logged_.emplace(kind, time);
    if (!fresh) {
      const int64_t age = time - last->second;
      if (age >= 0 && age < log_interval_s) return;
      last->second = time;
    }
  }
  log(line);
}

Result<StoreDirectory::WriterGuard> StoreDirectory::lock_for_writing() {
  std::unique_lock thread(writer_mutex_);
  DS4_TRY(folder_.restore());
  DS4_ASSIGN(WriterLock process, WriterLock::acquire(folder_.lock_path(), options_.lock_patience));
  return WriterGuard{std::move(thread), std::move(process)};
}

Result<StoreDirectory::WriterGuard> StoreDirectory::lock_for_writing(std::chrono::milliseconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  std::unique_lock thread(writer_mutex_, std::try_to_lock);
  while (!thread.owns_lock()) {
    if (std::chrono::steady_clock::now() >= give_up) {
      return fail(ErrorCode::io, "this program has been writing for too long");
    }
    std::this_thread::sleep_for(look_interval);
    thread.try_lock();
  }
  DS4_ASSIGN(WriterLock process, WriterLock::acquire(folder_.lock_path(), patience));
  return WriterGuard{std::move(thread), std::move(process)};
}

Result<void> StoreDirectory::open_index() {
  index_.reset();
  DS4_ASSIGN(StoreIndex index, StoreIndex::open(folder_.index_path()));
  const auto identity = identity_of(folder_.index_path());
  if (!identity) return fail(ErrorCode::io, "{} disappeared", folder_.index_path());
  std::tie(index_device_, index_inode_) = *identity;
  index_ = std::move(index);
  return {};
}

Result<void> StoreDirectory::use_current_index(Held held) {
  // Another process may have put a new one in its place, or somebody may have removed it.
  if (unfinished_) return rebuild_index(held, "the index is not finished");
  const auto identity = identity_of(folder_.index_path());
  if (index_ && identity == std::pair(index_device_, index_inode_)) return {};
  if (!identity && index_) return rebuild_index(held, "the index is gone");
  auto opened = open_index();
  if (opened || opened.error().code != ErrorCode::format) return opened;
  return rebuild_index(held, opened.error().message);
}

Result<void> StoreDirectory::rebuild_index(Held held, const std::string& reason) {
  std::optional<WriterLock> lock;
  if (held == Held::nothing) {
    DS4_TRY(folder_.restore());
    DS4_ASSIGN(lock, WriterLock::acquire(folder_.lock_path(), reader_patience));
  }
  // Another process may have done it meanwhile.
  const auto identity = identity_of(folder_.index_path());
  if (!unfinished_ && identity && identity != std::pair(index_device_, index_inode_) && open_index()) {
    return {};
  }
  unfinished_ = true;
  index_.reset();
  for (const char* end : {"", "-wal", "-shm", "-journal"}) unlink((folder_.index_path() + end).c_str());
  DS4_TRY(open_index());
  DS4_ASSIGN(const RecoveryReport report, recover(folder_, *index_));
  unfinished_ = false;
  count([](StoreStats& stats) { ++stats.rebuilds; });
  log(fmt::format("KV disk cache: {}; made it again from {} files ({} were of no use)", reason,
                  report.adopted, report.removed));
  return {};
}

Result<void> StoreDirectory::make_room(uint64_t bytes, int64_t held_segment) {
  const uint64_t slack = std::min(most_slack_bytes, options_.budget_bytes / 16);
  const auto wanted = checked_add(bytes, slack);
  EvictionPlan plan;
  const auto work = [&](StoreIndex& index) -> Result<void> {
    DS4_ASSIGN(const auto totals, index.totals());
    const uint64_t used = totals.state_bytes + totals.reply_bytes + folder_.index_bytes();
    const auto needed = wanted ? checked_add(used, *wanted) : std::nullopt;
    plan = {};
    if (needed && *needed <= options_.budget_bytes) return {};
    if (!wanted || *wanted > options_.budget_bytes) {
      return fail(ErrorCode::out_of_memory, "{} bytes do not fit in a disk cache of {} MiB", bytes,
                  options_.budget_bytes >> 20);
    }
    EvictionInput input;
    DS4_ASSIGN(input.frontiers, index.frontiers());
    DS4_ASSIGN(input.segments, index.segments());
    input.protected_keys = keys_in_use();
    input.held_segment = held_segment;
    input.bytes_to_free = used + *wanted - options_.budget_bytes;
    input.now = now();
    plan = plan_eviction(input);
    if (plan.freed_bytes < input.bytes_to_free && bytes > 0) {
      return fail(ErrorCode::out_of_memory,
                  "{} bytes do not fit in the disk cache beside what is in use or pinned", bytes);
    }
    return {};
  };
  DS4_TRY(with_index(Held::writer_lock, work));
  if (plan.frontiers.empty()) return {};
  DS4_TRY(remove_rows_and_files(plan.frontiers, plan.segments, Held::writer_lock));
  count([&](StoreStats& stats) { stats.evictions += plan.frontiers.size(); });
  return {};
}

Result<void> StoreDirectory::remove_rows_and_files(std::span<const FrontierRow> frontiers,
                                                   std::span<const SegmentRow> segments, Held held) {
  FileList files;
  const auto work = [&](StoreIndex& index) -> Result<void> {
    files.clear();
    DS4_ASSIGN(Transaction transaction, Transaction::begin(index.database()));
    for (const FrontierRow& planned : frontiers) {
      DS4_ASSIGN(const auto row, index.frontier(planned.key));
      if (!row) continue;
      DS4_TRY(index.remove_frontier(*row));
      files.push_back({FileKind::frontier, row->key, row->file_bytes});
    }
    for (const SegmentRow& planned : segments) {
      DS4_ASSIGN(const auto row, index.segment(planned.id));
      if (!row || row->name != planned.name) continue;
      DS4_TRY(index.remove_segment(row->id));
      files.push_back({FileKind::segment, row->name, row->file_bytes});
    }
    return transaction.commit();
  };
  DS4_TRY(with_index(held, work));
  unlink_all(files);
  return {};
}

void StoreDirectory::unlink_all(const FileList& files) {
  for (const auto& file : files) {
    if (folder_.remove(file.kind, file.name)) continue;
    log_rarely("remove",
               fmt::format("KV disk cache: {} cannot be removed", folder_.path_of(file.kind, file.name)));
  }
}

void StoreDirectory::drop(const Hash128& key, std::string_view reason) {
  FileList files;
  const auto guard = lock_for_writing(drop_patience);
  const Held held = guard ? Held::writer_lock : Held::nothing;
  const auto done = with_index(held, [&](StoreIndex& index) -> Result<void> {
    files.clear();
    DS4_ASSIGN(Transaction transaction, Transaction::begin(index.database()));
    DS4_ASSIGN(const auto row, index.frontier(key));
    files.push_back({FileKind::frontier, key, 0});
    if (row) DS4_TRY(index.remove_frontier(*row));
    return transaction.commit();
  });
  if (guard) unlink_all(files);
  count([](StoreStats& stats) { ++stats.damaged; });
  log(fmt::format("KV disk cache: dropped the state {}: {}{}", key.hex(), reason,
                  done ? "" : fmt::format(" ({})", done.error().message)));
}

void StoreDirectory::drop_segment(const Hash128& name, std::string_view reason) {
  FileList files;
  const auto guard = lock_for_writing(drop_patience);
  const Held held = guard ? Held::writer_lock : Held::nothing;
  const auto done = with_index(held, [&](StoreIndex& index) -> Result<void> {
    files.clear();
    DS4_ASSIGN(Transaction transaction, Transaction::begin(index.database()));
    DS4_ASSIGN(const auto segments, index.segments());
    const auto row =
        std::find_if(segments.begin(), segments.end(), [&](const SegmentRow& s) { return s.name == name; });
    if (row != segments.end()) {
      DS4_TRY(remove_segment_tree(index, *row, files));
    } else {
      files.push_back({FileKind::segment, name, 0});
    }
    return transaction.commit();
  });
  if (guard) unlink_all(files);
  count([](StoreStats& stats) { ++stats.damaged; });
  log(fmt::format("KV disk cache: dropped {} and the {} files that build on it: {}{}",
                  folder_.path_of(FileKind::segment, name), files.empty() ? 0 : files.size() - 1, reason,
                  done ? "" : fmt::format(" ({})", done.error().message)));
}

void StoreDirectory::drop_reply(const Hash128& name, std::string_view reason) {
  const auto guard = lock_for_writing(drop_patience);
  const Held held = guard ? Held::writer_lock : Held::nothing;
  const auto done = with_index(held, [&](StoreIndex& index) -> Result<void> {
    DS4_ASSIGN(const auto replies, index.replies());
    for (const ReplyRow& row : replies) {
      if (row.name == name) DS4_TRY(index.remove_reply(row.id));
    }
    return {};
  });
  if (guard) unlink_all({{FileKind::reply, name, 0}});
  count([](StoreStats& stats) { ++stats.damaged; });
  log(fmt::format("KV disk cache: dropped {}: {}{}", folder_.path_of(FileKind::reply, name), reason,
                  done ? "" : fmt::format(" ({})", done.error().message)));
}

KeySet StoreDirectory::keys_in_use() {
  const std::lock_guard guard(use_mutex_);
  KeySet keys;
  for (const auto& [key, uses] : in_use_) keys.insert(key);
  return keys;
}

StoreDirectory::Use::Use(StoreDirectory& directory, const Hash128& key) : directory_(directory), key_(key) {
  const std::lock_guard guard(directory_.use_mutex_);
  ++directory_.in_use_[key_];
}

StoreDirectory::Use::~Use() {
  const std::lock_guard guard(directory_.use_mutex_);
  const auto found = directory_.in_use_.find(key_);
  if (--found->second == 0) directory_.in_use_.erase(found);
}

StoreStats StoreDirectory::stats() {
  const auto totals = with_index(Held::nothing, [](StoreIndex& index) { return index.totals(); });
  const std::lock_guard guard(stats_mutex_);
  StoreStats stats = stats_;
  stats.budget_bytes = options_.budget_bytes;
  if (totals) {
    stats.entries = totals->frontiers;
    stats.segments = totals->segments;
    stats.replies = totals->replies;
    stats.bytes = totals->state_bytes + totals->reply_bytes + folder_.index_bytes();
  }
  return stats;
}

}  // namespace ds4::store
