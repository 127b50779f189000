#include "backend/cuda/state/portable_state.hpp"

#include <algorithm>
#include <utility>

namespace ds4::cuda {
namespace {

static_assert(state_attention_row_bytes == attention_row_bytes && state_index_row_bytes == index_row_bytes);

// Collects the places of parts in the order of the bytes.
class Spans {
 public:
  // Row n is in slot n mod `slots`.
  void add_ring(uint8_t* base, const StatePart& part, size_t count, size_t slots) {
    for (size_t done = 0; done < count;) {
      const size_t slot = (part.first + done) % slots, together = std::min(count - done, slots - slot);
      spans_.push_back({base + slot * part.row_bytes, together * part.row_bytes});
      done += together;
    }
  }
  void add_ring(uint8_t* base, const StatePart& part, size_t slots) {
    add_ring(base, part, part.count, slots);
  }
  void add_rows(const RowTable& table, const StatePart& part) {
    for (size_t done = 0; done < part.count;) {
      const size_t row = static_cast<size_t>(part.first) + done;
      const size_t together = std::min(part.count - done, rows_per_page - row % rows_per_page);
      spans_.push_back({table.row(row), together * part.row_bytes});
      done += together;
    }
  }
  void add_zeros(size_t bytes) { spans_.push_back({nullptr, bytes}); }
  std::vector<DeviceSpan> take() { return std::move(spans_); }

 private:
  std::vector<DeviceSpan> spans_;
};

}  // namespace

StateCopier::StateCopier(const model::ModelShape& shape, const ArenaLayout& layout)
    : shape_(shape), layout_(layout) {}

std::vector<DeviceSpan> StateCopier::spans_of(const CudaState& state, uint8_t* arena,
                                              const StateParts& parts) const {
  Spans spans;
  for (size_t l = 0; l < parts.layers.size(); ++l) {
    const StateLayerParts& part = parts.layers[l];
    const ArenaLayout::Layer& place = layout_.layers[l];
    spans.add_ring(arena + place.ring, part.window, ring_slots);
    const uint32_t ratio = shape_.ratios[l];
    if (ratio == 0) continue;
    const auto slots = static_cast<size_t>(compressor_slots(static_cast<int>(ratio)));
    spans.add_rows(state.compressed[l], part.attention);
    spans.add_ring(arena + place.values, part.values, slots);
    spans.add_ring(arena + place.scores, part.scores, slots);
    if (ratio != model::csa_ratio) continue;
    spans.add_rows(state.index[l], part.index);
    spans.add_ring(arena + place.index_values, part.index_values, slots);
    spans.add_ring(arena + place.index_scores, part.index_scores, slots);
  }
  const StatePart& window = parts.drafter_window;
  if (window.count == 0) return spans.take();
  // The row of the last token needs the token after it.
  spans.add_ring(arena + layout_.drafter_ring, window, window.count - 1, ring_slots);
  spans.add_zeros(window.row_bytes);
  spans.add_ring(arena + layout_.drafter_streams, parts.drafter_streams, retractable_tokens + 1);
  return spans.take();
}

void StateCopier::export_parts(const CudaStateImage& image, const StateParts& parts, std::byte* out) {
  std::vector<DeviceSpan> spans = spans_of(image.state, image.arena.data(), parts);
  if (parts.is_frontier()) {
    spans.push_back({image.state.kept_logits(0)->values.get(), parts.logits.bytes()});
  }
  copies_.to_host(spans, out);
}

void StateCopier::import_parts(CudaSequence& sequence, const StateParts& parts, const std::byte* bytes) {
  CudaState& state = sequence.state;
  for (size_t l = 0; l < parts.layers.size(); ++l) {
    const StateLayerParts& part = parts.layers[l];
    state.compressed[l].extend(static_cast<size_t>(part.attention.first) + part.attention.count);
    state.index[l].extend(static_cast<size_t>(part.index.first) + part.index.count);
  }
  copies_.to_device(spans_of(state, sequence.arena.data(), parts), bytes);
  if (!parts.is_frontier()) {
    state.imported = parts.position;
    return;
  }
  state.position = parts.position;
  // The rings hold what is needed to go on, and nothing to go back.
  state.furthest = parts.position + retractable_tokens;
  sequence.publish_tables(copies_.stream());
}

}  // namespace ds4::cuda
