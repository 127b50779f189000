#include "store/state_reader.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "store/store_format.hpp"

namespace ds4::store {
namespace {

constexpr uint64_t piece_bytes = uint64_t{1} << 20;
constexpr size_t files_ahead = 4;

/// Some blocks, or the end, or why there are no more.
struct Piece {
  std::vector<std::byte> bytes;
  size_t blocks = 0;
  bool last = false;
  std::optional<ReadFailure> failure;
};

/// Two pieces that a reader fills and a user empties in turn.
class PieceExchange {
 public:
  /// A piece to fill; null when the user has given up.
  Piece* to_fill() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return filled_ - used_ < pieces_.size() || stopped_; });
    return stopped_ ? nullptr : &pieces_[filled_ % pieces_.size()];
  }
  void filled() {
    const std::lock_guard lock(mutex_);
    ++filled_;
    changed_.notify_all();
  }
  Piece& to_use() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return filled_ > used_; });
    return pieces_[used_ % pieces_.size()];
  }
  void used() {
    const std::lock_guard lock(mutex_);
    ++used_;
    changed_.notify_all();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Piece, 2> pieces_;
  size_t filled_ = 0, used_ = 0;
  bool stopped_ = false;
};

class SegmentReader {
 public:
  explicit SegmentReader(const ReadPlan& plan) : plan_(plan) {}

  /// The next blocks of the plan into `piece`.
  void fill(Piece& piece) {
    piece.blocks = 0;
    piece.failure.reset();
    auto done = catch_bad_alloc("a state from disk", [&] { return read_next(piece); });
    piece.last = !done || segment_ == plan_.segments.size();
    if (!done) piece.failure = ReadFailure{std::move(done).error(), segment_, false};
  }

 private:
  Result<void> read_next(Piece& piece) {
    if (segment_ == plan_.segments.size()) return {};
    const ExpectedSegment& expected = plan_.segments[segment_];
    if (block_ == 0) DS4_TRY(open(expected));
    const size_t at_once = std::max<uint64_t>(1, piece_bytes / std::max<uint64_t>(1, plan_.block_bytes));
    const size_t count = std::min(at_once, expected.blocks - block_);
    piece.bytes.resize(count * plan_.block_bytes);
    DS4_TRY(file_.read(payload_begin_ + block_ * plan_.block_bytes, piece.bytes));
    for (size_t i = 0; i < count; ++i) {
      const auto block = std::span(piece.bytes).subspan(i * plan_.block_bytes, plan_.block_bytes);
      if (hash_of(block) != header_.block_hashes[block_ + i]) {
        return fail(ErrorCode::format, "{}: the checksum of block {} is wrong", file_.path,
                    expected.first_block + block_ + i);
      }
    }
    piece.blocks = count;
    block_ += count;
    if (block_ == expected.blocks) {
      ++segment_;
      block_ = 0;
    }
    return {};
  }

  Result<void> open(const ExpectedSegment& expected) {
    DS4_ASSIGN(file_, InputFile::open(plan_.folder->path_of(FileKind::segment, expected.name)));
    const auto damaged = [&](std::string_view what) {
      return fail(ErrorCode::format, "{}: {}", file_.path, what);
    };
    const auto bytes = file_.read_header(FileKind::segment);
    if (!bytes) return is_damage(bytes.error()) ? damaged(bytes.error().message) : bytes.error();
    auto header = parse_segment(*bytes, file_.bytes);
    if (!header) return damaged(header.error().message);
    if (header->fingerprint != plan_.fingerprint || header->block_tokens != plan_.block_tokens ||
        header->block_bytes != plan_.block_bytes || header->parent != expected.parent ||
        header->first_block != expected.first_block || header->blocks() < expected.blocks ||
        !std::equal(expected.tokens.begin(), expected.tokens.end(), header->tokens.begin())) {
      return damaged("it is not the segment that it should be");
    }
    header_ = std::move(*header);
    payload_begin_ = bytes->size();
    ask_for_more();
    return {};
  }

  /// The system fetches the next files while this one is read, so that a disk has enough to do.
  void ask_for_more() {
    asked_ = std::max(asked_, segment_);
    for (; asked_ < std::min(segment_ + files_ahead, plan_.segments.size()); ++asked_) {
      const auto next =
          InputFile::open(plan_.folder->path_of(FileKind::segment, plan_.segments[asked_].name));
      if (next) posix_fadvise(next->descriptor.get(), 0, 0, POSIX_FADV_WILLNEED);
    }
  }

  const ReadPlan& plan_;
  size_t segment_ = 0, block_ = 0;  // what comes next
  size_t asked_ = 0;                // segments before it were asked for
  InputFile file_;
  SegmentHeader header_;
  uint64_t payload_begin_ = 0;
};

/// Ends the reading thread, also when `use` throws.
class JoinedReader {
 public:
  JoinedReader(PieceExchange& exchange, std::thread thread)
      : exchange_(exchange), thread_(std::move(thread)) {}
  JoinedReader(const JoinedReader&) = delete;
  JoinedReader& operator=(const JoinedReader&) = delete;
  ~JoinedReader() {
    exchange_.stop();
    thread_.join();
  }

 private:
  PieceExchange& exchange_;
  std::thread thread_;
};

}  // namespace

std::optional<ReadFailure> read_blocks(const ReadPlan& plan,
                                       const std::function<Result<void>(std::span<const std::byte>)>& use) {
  if (plan.segments.empty()) return std::nullopt;
  SegmentReader reader(plan);
  PieceExchange exchange;
  const auto read_all = [&] {
    while (Piece* piece = exchange.to_fill()) {
      reader.fill(*piece);
      const bool last = piece->last;
      exchange.filled();
      if (last) return;
    }
  };
  std::thread ahead;
  try {
    ahead = std::thread(read_all);
  } catch (const std::system_error&) {
    return ReadFailure{fail(ErrorCode::out_of_memory, "no thread to read a state from disk"), 0, true};
  }
  const JoinedReader joined(exchange, std::move(ahead));
  std::optional<ReadFailure> failure;
  while (true) {
    Piece& piece = exchange.to_use();
    failure = std::move(piece.failure);
    for (size_t i = 0; i < piece.blocks && !failure; ++i) {
      const auto used =
          use(std::span<const std::byte>(piece.bytes).subspan(i * plan.block_bytes, plan.block_bytes));
      if (!used) failure = ReadFailure{used.error(), 0, true};
    }
    if (failure || piece.last) break;
    exchange.used();
  }
  return failure;
}

}  // namespace ds4::store
