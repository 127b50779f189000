// Everything the CPU backend remembers about one sequence. Copyable: a copy is a checkpoint (docs/model.md
// §2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/kv_rows.hpp"
#include "backend/cpu/row_pages.hpp"
#include "model/shape.hpp"

namespace ds4::cpu {

/// How many tokens a state can be taken back by forgetting them: what the rings below keep beyond need.
inline constexpr size_t retractable_tokens = 16;

/// The last finished KV rows, those of the window and the retractable ones; position p lies in slot p mod
/// 144.
class RawWindow {
 public:
  explicit RawWindow(size_t row_bytes = 0) : row_bytes_(row_bytes) {}

  static constexpr size_t slots = model::window + retractable_tokens;

  std::byte* slot(uint64_t position);
  const std::byte* row(uint64_t position) const { return rows_.data() + position % slots * row_bytes_; }
  size_t memory_bytes() const { return rows_.capacity(); }

 private:
  size_t row_bytes_;
  std::vector<std::byte> rows_;  // grows to all slots
};

/// Projected rows of the newest tokens of one compressor: those of the open window (and, for ratio 4, of the
/// previous one) and the retractable ones. Scores already include the position table (APE). Rows of positions
/// before the first have value 0 and score -infinity.
class CompressorState {
 public:
  CompressorState() = default;
  CompressorState(uint32_t ratio, uint32_t dim);

  uint32_t ratio() const { return ratio_; }
  uint32_t width() const { return width_; }
  /// Row of the token at `position`, which may lie before 0.
  float* value_row(int64_t position) { return values_.data() + slot(position) * width_; }
  float* score_row(int64_t position) { return scores_.data() + slot(position) * width_; }
  const float* value_row(int64_t position) const { return values_.data() + slot(position) * width_; }
  const float* score_row(int64_t position) const { return scores_.data() + slot(position) * width_; }
  size_t memory_bytes() const { return (values_.capacity() + scores_.capacity()) * sizeof(float); }

 private:
  size_t slot(int64_t position) const {
    const auto slots = static_cast<int64_t>(slots_);
    return static_cast<size_t>((position % slots + slots) % slots);
  }

  uint32_t ratio_ = 0, width_ = 0, slots_ = 0;
  std::vector<float> values_, scores_;  // [slots][width]; position p in slot p mod slots
};

struct LayerState {
  RawWindow window;
  RowPages compressed;  // ratio != 0: row j covers tokens [j * ratio, (j + 1) * ratio)
  CompressorState compressor;
  RowPages index_rows;  // ratio 4
  CompressorState index_compressor;

  LayerState(uint32_t ratio, const RowCodec& codec);
  /// Forgets the rows that tokens from `position` on completed.
  void truncate(uint64_t position);
  size_t memory_bytes() const;
  size_t page_bytes() const { return compressed.memory_bytes() + index_rows.memory_bytes(); }
};

/// The drafter's own window, and what it needs to make its next row.
struct DrafterState {
  LayerState layer;

  /// Streams [4][d] after the last layer of the token at `position`, one of the newest.
  const float* streams(uint64_t position) const { return streams_.data() + position % slots * row_values_; }
  /// Keeps the streams of the token at `position`.
  void keep_streams(uint64_t position, std::span<const float> values);
  size_t memory_bytes() const { return layer.memory_bytes() + streams_.size() * sizeof(float); }

  explicit DrafterState(const RowCodec& codec) : layer(0, codec) {}

 private:
  static constexpr size_t slots = retractable_tokens + 1;
  size_t row_values_ = 0;
  std::vector<float> streams_;  // [slots][4][d]; empty before the first token
};

struct SequenceState {
  uint64_t position = 0;  // tokens evaluated
  uint64_t furthest = 0;  // what the rings reach back from: the most there ever were, more after an import
  std::vector<LayerState> layers;
  std::optional<DrafterState> drafter;

  SequenceState(const model::ModelShape& shape, const RowCodec& codec, bool with_drafter);
  void advance(uint64_t new_position);
  /// Back to no tokens; gives up the rows.
  void clear();
  /// Forgets the last `count` tokens as if they had never been. False if the rings do not reach back that
  /// far.
  bool retract(uint64_t count);
  size_t memory_bytes() const;
  size_t page_bytes() const;  // of those, pages of rows, which copies share
};

}  // namespace ds4::cpu
