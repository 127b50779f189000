// Everything the CPU backend remembers about one sequence. Copyable: a copy is a checkpoint (docs/model.md
// §2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/cpu/kv_rows.hpp"
#include "backend/cpu/row_pages.hpp"
#include "model/shape.hpp"

namespace ds4::cpu {

/// The last 128 finished KV rows; position p lies in slot p mod 128.
class RawWindow {
 public:
  explicit RawWindow(size_t row_bytes = 0) : row_bytes_(row_bytes) {}

  std::byte* slot(uint64_t position);
  const std::byte* row(uint64_t position) const {
    return rows_.data() + position % model::window * row_bytes_;
  }
  size_t memory_bytes() const { return rows_.capacity(); }

 private:
  size_t row_bytes_;
  std::vector<std::byte> rows_;  // grows to 128 rows
};

/// Rolling state of one compressor: projected rows of the open window (and, for ratio 4, of the previous
/// one). Scores already include the position table (APE). Rows not written yet have value 0 and score
/// -infinity.
class CompressorState {
 public:
  CompressorState() = default;
  CompressorState(uint32_t ratio, uint32_t dim);

  uint32_t ratio() const { return ratio_; }
  uint32_t width() const { return width_; }
  float* value_row(size_t row) { return values_.data() + row * width_; }
  float* score_row(size_t row) { return scores_.data() + row * width_; }
  /// Ratio 4: the current window becomes the previous one.
  void shift();
  size_t memory_bytes() const { return (values_.capacity() + scores_.capacity()) * sizeof(float); }

 private:
  uint32_t ratio_ = 0, width_ = 0;
  std::vector<float> values_, scores_;  // [compressor_rows(ratio)][width]
};

struct LayerState {
  RawWindow window;
  RowPages compressed;  // ratio != 0: row j covers tokens [j * ratio, (j + 1) * ratio)
  CompressorState compressor;
  RowPages index_rows;  // ratio 4
  CompressorState index_compressor;

  LayerState(uint32_t ratio, const RowCodec& codec);
  size_t memory_bytes() const;
};

/// The drafter's own window, and what it needs to make its next row.
struct DrafterState {
  LayerState layer;
  std::vector<float> streams;  // [4][d] of the last token after the last layer; empty at position 0
};

struct SequenceState {
  uint64_t position = 0;  // tokens evaluated
  std::vector<LayerState> layers;
  std::optional<DrafterState> drafter;

  SequenceState(const model::ModelShape& shape, const RowCodec& codec, bool with_drafter);
  size_t memory_bytes() const;
};

}  // namespace ds4::cpu
