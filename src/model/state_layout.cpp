#include <algorithm>
#include <utility>

#include "ds4/state.hpp"
#include "model/decode_traffic.hpp"
#include "model/shape.hpp"

namespace ds4 {
namespace {

static_assert(state_block_tokens == model::hca_ratio && state_block_tokens == model::window);
static_assert(state_block_tokens % model::csa_ratio == 0);
static_assert(state_attention_row_bytes == model::packed_attention_row_bytes);
static_assert(state_index_row_bytes == model::packed_index_row_bytes);

// Places parts one behind the other.
class Placement {
 public:
  StatePart place(uint64_t first, size_t count, size_t row_bytes) {
    const StatePart part{bytes_, first, count, row_bytes};
    bytes_ += part.bytes();
    return part;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

size_t window_rows(uint64_t position) {
  return static_cast<size_t>(std::min<uint64_t>(position, model::window));
}

// The first token that a compressor still needs after `position` tokens: that of the open window, and with
// ratio 4 of the one before it.
uint64_t first_open_token(uint64_t position, uint32_t ratio) {
  const uint64_t open = position / ratio * ratio;
  return ratio == model::csa_ratio && open > 0 ? open - ratio : open;
}

StateLayerParts place_block(Placement& placement, uint32_t ratio, uint64_t number) {
  StateLayerParts parts;
  if (ratio == 0) return parts;
  const size_t rows = state_block_tokens / ratio;
  parts.attention = placement.place(number * rows, rows, state_attention_row_bytes);
  if (ratio == model::csa_ratio) {
    parts.index = placement.place(number * rows, rows, state_index_row_bytes);
  }
  return parts;
}

StateLayerParts place_frontier(Placement& placement, uint32_t ratio, uint64_t position) {
  StateLayerParts parts;
  const size_t window = window_rows(position);
  parts.window = placement.place(position - window, window, state_attention_row_bytes);
  if (ratio == 0) return parts;
  const uint64_t first_row = position / state_block_tokens * (state_block_tokens / ratio);
  const auto rows = static_cast<size_t>(position / ratio - first_row);
  const uint64_t first_token = first_open_token(position, ratio);
  const auto tokens = static_cast<size_t>(position - first_token);
  const size_t width = model::compressor_width(ratio, model::head_dim) * sizeof(float);
  parts.attention = placement.place(first_row, rows, state_attention_row_bytes);
  parts.values = placement.place(first_token, tokens, width);
  parts.scores = placement.place(first_token, tokens, width);
  if (ratio != model::csa_ratio) return parts;
  const size_t index_width = model::compressor_width(ratio, model::index_head_dim) * sizeof(float);
  parts.index = placement.place(first_row, rows, state_index_row_bytes);
  parts.index_values = placement.place(first_token, tokens, index_width);
  parts.index_scores = placement.place(first_token, tokens, index_width);
  return parts;
}

void place_tail(Placement& placement, const StateLayout& layout, StateParts& parts) {
  const uint64_t position = parts.position;
  if (layout.drafter()) {
    const size_t rows = window_rows(position);
    parts.drafter_window = placement.place(position - rows, rows, state_attention_row_bytes);
    parts.drafter_streams =
        placement.place(position - 1, 1, size_t{model::streams} * layout.width() * sizeof(float));
  }
  parts.logits = placement.place(position - 1, 1, size_t{layout.vocabulary()} * sizeof(float));
}

}  // namespace

StateLayout::StateLayout(std::vector<uint32_t> ratios, uint32_t width, uint32_t vocabulary, bool drafter)
    : ratios_(std::move(ratios)), width_(width), vocabulary_(vocabulary), drafter_(drafter) {}

size_t StateLayout::block_bytes() const {
  Placement placement;
  for (const uint32_t ratio : ratios_) place_block(placement, ratio, 0);
  return placement.bytes();
}

size_t StateLayout::frontier_bytes(uint64_t position) const {
  Placement placement;
  for (const uint32_t ratio : ratios_) place_frontier(placement, ratio, position);
  StateParts tail;
  tail.position = position;
  place_tail(placement, *this, tail);
  return placement.bytes();
}

StateParts StateLayout::block(uint64_t number) const {
  StateParts parts;
  Placement placement;
  parts.position = (number + 1) * state_block_tokens;
  parts.layers.reserve(ratios_.size());
  for (const uint32_t ratio : ratios_) parts.layers.push_back(place_block(placement, ratio, number));
  parts.bytes = placement.bytes();
  return parts;
}

StateParts StateLayout::frontier(uint64_t position) const {
  StateParts parts;
  Placement placement;
  parts.position = position;
  parts.layers.reserve(ratios_.size());
  for (const uint32_t ratio : ratios_) parts.layers.push_back(place_frontier(placement, ratio, position));
  place_tail(placement, *this, parts);
  parts.bytes = placement.bytes();
  return parts;
}

}  // namespace ds4
