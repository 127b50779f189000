#include "store/recovery.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "base/error.hpp"
#include "store/chain.hpp"
#include "store/lineage.hpp"

namespace ds4::store {
namespace {

using Found = StoreFolder::Found;
using FileMap = std::unordered_map<Hash128, uint64_t, HashOfHash128>;

template <class Header>
struct Unknown {
  Header header;
  Found file;
};

class Recovery {
 public:
  Recovery(const StoreFolder& folder, StoreIndex& index) : folder_(folder), index_(index) {}

  Result<RecoveryReport> run() {
    folder_.remove_temporary();
    DS4_ASSIGN(const auto found, folder_.scan());
    for (const Found& file : found) files_of(file.kind).emplace(file.name, file.bytes);
    DS4_ASSIGN(Transaction transaction, Transaction::begin(index_.database()));
    DS4_TRY(forget_missing());
    DS4_TRY(check_rows());
    DS4_TRY(adopt_segments());
    DS4_TRY(adopt_frontiers());
    DS4_TRY(adopt_replies());
    // A state that cannot be read now may need what looks as if nobody did.
    if (!unread(FileKind::frontier)) DS4_TRY(remove_unneeded_segments(index_, gone_));
    DS4_TRY(restore_pins());
    DS4_TRY(transaction.commit());
    for (const Found& file : gone_) folder_.remove(file.kind, file.name);
    report_.removed += gone_.size();
    return report_;
  }

 private:
  FileMap& files_of(FileKind kind) { return files_[static_cast<size_t>(kind)]; }

  /// That rows name the rows that they build on. What is not so could keep an entry from being found, and
  /// would make others look as if nobody needed them.
  Result<void> check_rows() {
    const auto disagree = [] {
      return fail(ErrorCode::format, "the index is damaged: its rows do not go together");
    };
    DS4_ASSIGN(const auto segments, index_.segments());
    std::unordered_map<int64_t, uint64_t> first_block, position;
    for (const SegmentRow& row : segments) {
      first_block[row.id] = row.first_block;
      DS4_ASSIGN(const auto before, index_.find_block(row.parent_hash));
      if ((before ? before->segment : 0) != row.parent || (row.first_block == 0) != !before)
        return disagree();
    }
    DS4_ASSIGN(const auto frontiers, index_.frontiers());
    for (const FrontierRow& row : frontiers) {
      position[row.id] = row.position;
      DS4_ASSIGN(const auto last, index_.find_block(row.base));
      const uint64_t blocks = row.position / row.block_tokens;
      if ((last ? last->segment : 0) != row.segment || (blocks == 0) != !last) return disagree();
      if (last && first_block[last->segment] + last->slot + 1 != blocks) return disagree();
    }
    for (const FrontierRow& row : frontiers) {
      if (row.parent == 0) continue;
      const auto parent = position.find(row.parent);
      if (parent == position.end() || parent->second >= row.position) return disagree();
    }
    return {};
  }

  /// Leaves in the maps what the index does not know.
  Result<void> forget_missing() {
    const auto is_there = [&](FileKind kind, const Hash128& name, uint64_t bytes) {
      const auto found = files_of(kind).find(name);
      return found != files_of(kind).end() && found->second == bytes;
    };
    DS4_ASSIGN(const auto segments, index_.segments());
    FileList gone;
    for (const SegmentRow& row : segments) {
      if (is_there(FileKind::segment, row.name, row.file_bytes)) continue;
      ++report_.missing;
      DS4_TRY(remove_segment_tree(index_, row, gone));
    }
    DS4_ASSIGN(const auto frontiers, index_.frontiers());
    for (const FrontierRow& row : frontiers) {
      if (is_there(FileKind::frontier, row.key, row.file_bytes)) continue;
      ++report_.missing;
      DS4_TRY(index_.remove_frontier(row));
      gone.push_back({FileKind::frontier, row.key, 0});
    }
    DS4_ASSIGN(const auto replies, index_.replies());
    for (const ReplyRow& row : replies) {
      if (is_there(FileKind::reply, row.name, row.file_bytes)) {
        files_of(FileKind::reply).erase(row.name);
        continue;
      }
      ++report_.missing;
      DS4_TRY(index_.remove_reply(row.id));
      gone.push_back({FileKind::reply, row.name, 0});
    }
    for (const Found& file : gone) files_of(file.kind).erase(file.name);
    gone_.insert(gone_.end(), gone.begin(), gone.end());
    DS4_ASSIGN(const auto segments_left, index_.segments());
    for (const SegmentRow& row : segments_left) files_of(FileKind::segment).erase(row.name);
    DS4_ASSIGN(const auto frontiers_left, index_.frontiers());
    for (const FrontierRow& row : frontiers_left) files_of(FileKind::frontier).erase(row.key);
    return {};
  }

  /// Some files of this kind could not be read, or are of a newer version.
  bool& unread(FileKind kind) { return unread_[static_cast<size_t>(kind)]; }

  /// The headers of the files of a kind that the index does not know; those that are damaged go. Those that
  /// the system does not let us read now, and those of a newer version, stay as they are.
  template <class Header, class Parse>
  std::vector<Unknown<Header>> read_unknown(FileKind kind, const Parse& parse) {
    std::vector<Unknown<Header>> all;
    for (const auto& [name, bytes] : files_of(kind)) {
      const Found file{kind, name, bytes};
      auto header = read_header<Header>(file, parse);
      if (header && header->name() == name) {
        all.push_back({std::move(*header), file});
      } else if (header || header.error().code == ErrorCode::format) {
        gone_.push_back(file);
      } else {
        unread(kind) = true;
      }
    }
    return all;
  }

  template <class Header, class Parse>
  Result<Header> read_header(const Found& file, const Parse& parse) {
    DS4_ASSIGN(const InputFile input, InputFile::open(folder_.path_of(file.kind, file.name)));
    DS4_ASSIGN(const auto bytes, input.read_header(file.kind));
    return parse(bytes, input.bytes);
  }

  Result<void> adopt_segments() {
    auto unknown = read_unknown<SegmentHeader>(FileKind::segment, parse_segment);
    std::sort(unknown.begin(), unknown.end(),
              [](const auto& a, const auto& b) { return a.header.first_block < b.header.first_block; });
    for (const auto& [header, file] : unknown) {
      DS4_ASSIGN(const bool fits, fits_segment(header));
      if (!fits) {
        give_up(file);
        continue;
      }
      DS4_TRY(index_.add_segment(header, file.bytes));
      ++report_.adopted;
    }
    return {};
  }

  /// A file without what it builds on, unless that is a file that could not be read.
  void give_up(const Found& file) {
    if (!unread(FileKind::segment)) gone_.push_back(file);
  }

  /// The block before it is there, and none of its own is.
  Result<bool> fits_segment(const SegmentHeader& header) {
    DS4_ASSIGN(const bool continues,
               ends_at(header.parent, header.first_block, header.fingerprint, header.block_tokens));
    if (!continues) return false;
    for (const Hash128& hash : header.chain()) {
      if (hash == header.parent) continue;
      DS4_ASSIGN(const auto known, index_.find_block(hash));
      if (known) return false;
    }
    return true;
  }

  /// `hash` is that of a sequence of `blocks` blocks that are there.
  Result<bool> ends_at(const Hash128& hash, uint64_t blocks, const Hash128& fingerprint,
                       uint32_t block_tokens) {
    if (blocks == 0) return hash == Chain::start(fingerprint, block_tokens);
    DS4_ASSIGN(const auto place, index_.find_block(hash));
    if (!place) return false;
    DS4_ASSIGN(const auto segment, index_.segment(place->segment));
    return segment && segment->first_block + place->slot + 1 == blocks &&
           segment->fingerprint == fingerprint && segment->block_tokens == block_tokens;
  }

  Result<void> adopt_frontiers() {
    auto unknown = read_unknown<FrontierHeader>(FileKind::frontier, parse_frontier);
    std::sort(unknown.begin(), unknown.end(),
              [](const auto& a, const auto& b) { return a.header.position < b.header.position; });
    for (const auto& [header, file] : unknown) {
      const uint64_t blocks = header.position / header.block_tokens;
      DS4_ASSIGN(const bool fits, ends_at(header.base, blocks, header.fingerprint, header.block_tokens));
      if (!fits) {
        give_up(file);
        continue;
      }
      FrontierRow row;
      row.key = file.name;
      row.fingerprint = header.fingerprint;
      row.base = header.base;
      row.position = header.position;
      row.block_tokens = header.block_tokens;
      row.tail = header.tail;
      if (blocks > 0) {
        DS4_ASSIGN(const auto place, index_.find_block(header.base));
        row.segment = place ? place->segment : 0;
      }
      DS4_ASSIGN(const Lineage lineage, lineage_of(index_, row));
      DS4_TRY(insert_frontier(index_, header, file.bytes, false, lineage.chain, lineage.tokens));
      ++report_.adopted;
    }
    return {};
  }

  Result<void> adopt_replies() {
    auto unknown = read_unknown<ReplyHeader>(FileKind::reply, parse_reply);
    std::sort(unknown.begin(), unknown.end(),
              [](const auto& a, const auto& b) { return a.header.created < b.header.created; });
    for (const auto& [header, file] : unknown) {
      DS4_TRY(index_.add_reply(header, file.bytes));
      ++report_.adopted;
    }
    return {};
  }

  Result<void> restore_pins() {
    DS4_ASSIGN(const auto pins, folder_.scan_pins());
    for (const Hash128& key : pins) {
      DS4_ASSIGN(const auto row, index_.frontier(key));
      if (row && !row->pinned) DS4_TRY(index_.set_pinned(row->id, true));
    }
    return {};
  }

  const StoreFolder& folder_;
  StoreIndex& index_;
  std::array<FileMap, 3> files_;
  std::array<bool, 3> unread_{};
  FileList gone_;
  RecoveryReport report_;
};

}  // namespace

Result<RecoveryReport> recover(const StoreFolder& folder, StoreIndex& index) {
  return Recovery(folder, index).run();
}

}  // namespace ds4::store
