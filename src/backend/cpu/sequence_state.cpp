#include "backend/cpu/sequence_state.hpp"

#include <algorithm>
#include <limits>

namespace ds4::cpu {

std::byte* RawWindow::slot(uint64_t position) {
  const size_t slot = position % slots;
  if (rows_.size() < (slot + 1) * row_bytes_) rows_.resize((slot + 1) * row_bytes_);
  return rows_.data() + slot * row_bytes_;
}

CompressorState::CompressorState(uint32_t ratio, uint32_t dim)
    : ratio_(ratio),
      width_(model::compressor_width(ratio, dim)),
      slots_(model::compressor_rows(ratio) + static_cast<uint32_t>(retractable_tokens)) {
  const size_t size = size_t{slots_} * width_;
  values_.assign(size, 0.0f);
  scores_.assign(size, -std::numeric_limits<float>::infinity());
}

LayerState::LayerState(uint32_t ratio, const RowCodec& codec) : window(codec.attention_bytes()) {
  if (ratio == 0) return;
  compressed = RowPages(codec.attention_bytes());
  compressor = CompressorState(ratio, model::head_dim);
  if (ratio != model::csa_ratio) return;
  index_rows = RowPages(codec.index_bytes());
  index_compressor = CompressorState(ratio, model::index_head_dim);
}

void LayerState::truncate(uint64_t position) {
  if (compressor.ratio() == 0) return;
  const auto rows = static_cast<size_t>(position / compressor.ratio());
  compressed.truncate(std::min(compressed.size(), rows));
  if (index_compressor.ratio() != 0) index_rows.truncate(std::min(index_rows.size(), rows));
}

size_t LayerState::memory_bytes() const {
  return window.memory_bytes() + compressed.memory_bytes() + compressor.memory_bytes() +
         index_rows.memory_bytes() + index_compressor.memory_bytes();
}

void DrafterState::keep_streams(uint64_t position, std::span<const float> values) {
  row_values_ = values.size();
  streams_.resize(slots * row_values_);
  std::copy(values.begin(), values.end(),
            streams_.begin() + static_cast<ptrdiff_t>(position % slots * row_values_));
}

SequenceState::SequenceState(const model::ModelShape& shape, const RowCodec& codec, bool with_drafter) {
  layers.reserve(shape.layers);
  for (uint32_t ratio : shape.ratios) layers.emplace_back(ratio, codec);
  if (with_drafter) drafter.emplace(codec);
}

void SequenceState::advance(uint64_t new_position) {
  position = new_position;
  furthest = std::max(furthest, position);
}

void SequenceState::clear() {
  position = furthest = 0;
  for (LayerState& layer : layers) layer.truncate(0);
}

bool SequenceState::retract(uint64_t count) {
  if (count > position || position - count + retractable_tokens < furthest) return false;
  position -= count;
  for (LayerState& layer : layers) layer.truncate(position);
  return true;
}

size_t SequenceState::memory_bytes() const {
  size_t bytes = 0;
  for (const LayerState& layer : layers) bytes += layer.memory_bytes();
  if (drafter) bytes += drafter->memory_bytes();
  return bytes;
}

size_t SequenceState::page_bytes() const {
  size_t bytes = 0;
  for (const LayerState& layer : layers) bytes += layer.page_bytes();
  return bytes;
}

}  // namespace ds4::cpu
