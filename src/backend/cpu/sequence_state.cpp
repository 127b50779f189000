#include "backend/cpu/sequence_state.hpp"

#include <algorithm>
#include <limits>

namespace ds4::cpu {

std::byte* RawWindow::slot(uint64_t position) {
  const size_t slot = position % model::window;
  if (rows_.size() < (slot + 1) * row_bytes_) rows_.resize((slot + 1) * row_bytes_);
  return rows_.data() + slot * row_bytes_;
}

CompressorState::CompressorState(uint32_t ratio, uint32_t dim)
    : ratio_(ratio), width_(model::compressor_width(ratio, dim)) {
  const size_t size = static_cast<size_t>(model::compressor_rows(ratio)) * width_;
  values_.assign(size, 0.0f);
  scores_.assign(size, -std::numeric_limits<float>::infinity());
}

void CompressorState::shift() {
  const size_t half = static_cast<size_t>(model::csa_ratio) * width_;
  std::copy(values_.begin() + static_cast<ptrdiff_t>(half), values_.end(), values_.begin());
  std::copy(scores_.begin() + static_cast<ptrdiff_t>(half), scores_.end(), scores_.begin());
}

LayerState::LayerState(uint32_t ratio, const RowCodec& codec) : window(codec.attention_bytes()) {
  if (ratio == 0) return;
  compressed = RowPages(codec.attention_bytes());
  compressor = CompressorState(ratio, model::head_dim);
  if (ratio != model::csa_ratio) return;
  index_rows = RowPages(codec.index_bytes());
  index_compressor = CompressorState(ratio, model::index_head_dim);
}

size_t LayerState::memory_bytes() const {
  return window.memory_bytes() + compressed.memory_bytes() + compressor.memory_bytes() +
         index_rows.memory_bytes() + index_compressor.memory_bytes();
}

SequenceState::SequenceState(const model::ModelShape& shape, const RowCodec& codec, bool with_drafter) {
  layers.reserve(shape.layers);
  for (uint32_t ratio : shape.ratios) layers.emplace_back(ratio, codec);
  if (with_drafter) drafter = DrafterState{LayerState(0, codec), {}};
}

size_t SequenceState::memory_bytes() const {
  size_t bytes = 0;
  for (const LayerState& layer : layers) bytes += layer.memory_bytes();
  if (drafter) bytes += drafter->layer.memory_bytes() + drafter->streams.size() * sizeof(float);
  return bytes;
}

}  // namespace ds4::cpu
