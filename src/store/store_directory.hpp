// A folder with states of conversations, shared by the programs that use it: what is there, whether it is
// sound, and what goes when there is no room. Knows nothing of a model; StateStore adds that.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "ds4/error.hpp"
#include "store/eviction.hpp"
#include "store/lineage.hpp"
#include "store/store_files.hpp"
#include "store/store_index.hpp"

namespace ds4::store {

struct StoreDirectoryOptions {
  std::string directory;
  uint64_t budget_bytes = uint64_t{4096} << 20;  // of all files together
  std::chrono::milliseconds lock_patience{10000};
  std::function<int64_t()> clock;             // seconds since 1970; empty: the system's
  std::function<void(std::string_view)> log;  // one line each; any thread
};

/// Since the store was opened, and what is there now.
struct StoreStats {
  uint64_t hits = 0, misses = 0;
  std::map<std::string, uint64_t> miss_reasons;
  uint64_t writes = 0, writes_skipped = 0, write_failures = 0;
  uint64_t bytes_written = 0, bytes_read = 0;
  uint64_t evictions = 0;  // of frontiers
  uint64_t thinned = 0;    // frontiers given up because newer ones of the same text are there
  uint64_t damaged = 0;    // entries that were dropped
  uint64_t rebuilds = 0;   // of the index
  uint64_t entries = 0, segments = 0, replies = 0;
  uint64_t bytes = 0;  // all files with the index
  uint64_t budget_bytes = 0;
};

/// A state that can be continued.
struct StoreEntry {
  Hash128 key, fingerprint;
  uint64_t tokens = 0;
  SaveReason reason = SaveReason::unknown;
  bool pinned = false, anchor = false;
  double hits = 0;  // as they count now
  int64_t created = 0, used = 0;
  uint64_t frontier_bytes = 0;  // of its own file
  uint64_t segment_bytes = 0;   // of all segments that it needs
  uint64_t own_bytes = 0;       // that would be free without it
  std::optional<Hash128> parent;
};

struct DamagedFile {
  FileKind kind = FileKind::segment;
  std::string path;
  std::string reason;
  bool unreadable = false;  // the system says so; the file may be sound, and is not dropped
};

struct VerifyReport {
  uint64_t files = 0, bytes = 0;
  std::vector<DamagedFile> damaged;
};

struct PurgeFilter {
  std::optional<Hash128> key;
  std::optional<Hash128> fingerprint;
  std::optional<int64_t> unused_for_s;
  bool pinned_too = false;
  bool replies = false;  // as well, all of them
};

/// Safe to use from several threads and by several processes at once.
class StoreDirectory {
 public:
  /// Creates the folder if it is missing, brings index and files together and keeps to the budget.
  static Result<std::unique_ptr<StoreDirectory>> open(StoreDirectoryOptions options);
  virtual ~StoreDirectory() = default;

  Result<std::vector<StoreEntry>> list();
  Result<std::optional<StoreEntry>> show(const Hash128& key);
  /// Reads every byte; `drop`: damaged files go with everything that builds on them.
  Result<VerifyReport> verify(bool drop);
  /// Entries that are pinned are never evicted. Errors: not_found.
  Result<void> set_pinned(const Hash128& key, bool pinned);
  /// The number of states that went.
  Result<uint64_t> purge(const PurgeFilter& filter);
  /// A state that failed goes, with one line in the log. If somebody else has been writing for long, it is
  /// only forgotten: a sound file of its name may be on its way. Whoever opens the store next finds the file.
  void drop(const Hash128& key, std::string_view reason);

  StoreStats stats();
  const StoreFolder& folder() const { return folder_; }
  uint64_t budget_bytes() const { return options_.budget_bytes; }

 protected:
  StoreDirectory(StoreDirectoryOptions options, StoreFolder folder)
      : options_(std::move(options)), folder_(std::move(folder)) {}
  Result<void> start();

  int64_t now() const;
  void log(std::string_view line) const;
  /// At most one line a minute of each kind.
  void log_rarely(const std::string& kind, const std::string& line);

  /// Who holds one is the only writer of all processes.
  struct WriterGuard {
    std::unique_lock<std::mutex> thread;
    WriterLock process;
  };
  Result<WriterGuard> lock_for_writing();
  /// Waits at most so long for other threads, and as long for other processes.
  Result<WriterGuard> lock_for_writing(std::chrono::milliseconds patience);

  enum class Held { nothing, writer_lock };
  /// `work(index)` under the lock of the index; once more on a new index if the present one is damaged.
  template <class Work>
  auto with_index(Held held, const Work& work) -> decltype(work(std::declval<StoreIndex&>())) {
    const std::lock_guard guard(index_mutex_);
    DS4_TRY(use_current_index(held));
    auto result = work(*index_);
    if (result || result.error().code != ErrorCode::format) return result;
    DS4_TRY(rebuild_index(held, result.error().message));
    return work(*index_);
  }

  /// Evicts until so many bytes can be written. Error: out_of_memory if there is no room for that.
  Result<void> make_room(uint64_t bytes, int64_t held_segment);
  Result<void> remove_rows_and_files(std::span<const FrontierRow> frontiers,
                                     std::span<const SegmentRow> segments, Held held);
  void drop_segment(const Hash128& name, std::string_view reason);
  void drop_reply(const Hash128& name, std::string_view reason);
  void unlink_all(const FileList& files);
  KeySet keys_in_use();

  /// Entries that are being read; eviction spares them.
  class Use {
   public:
    Use(StoreDirectory& directory, const Hash128& key);
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use();

   private:
    StoreDirectory& directory_;
    Hash128 key_;
  };

  template <class Change>
  void count(const Change& change) {
    const std::lock_guard guard(stats_mutex_);
    change(stats_);
  }

  StoreDirectoryOptions options_;
  StoreFolder folder_;

 private:
  Result<void> use_current_index(Held held);
  Result<void> open_index();
  Result<void> rebuild_index(Held held, const std::string& reason);
  Result<void> check_file(FileKind kind, const Hash128& name, VerifyReport& report);
  Result<void> check_payload(const InputFile& file, FileKind kind, std::span<const std::byte> header);

  std::mutex writer_mutex_, index_mutex_;
  std::optional<StoreIndex> index_;
  uint64_t index_device_ = 0, index_inode_ = 0;
  bool unfinished_ = false;  // it was to be made again, and some files could not be read

  std::mutex use_mutex_;
  std::map<Hash128, size_t> in_use_;

  std::mutex stats_mutex_;
  StoreStats stats_;

  std::mutex log_mutex_;
  std::map<std::string, int64_t> logged_;
};

}  // namespace ds4::store
