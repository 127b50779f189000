#include "backend/cuda/state/portable_state.hpp"

#include <algorithm>
#include <cstring>

namespace ds4::cuda {
namespace {

static_assert(state_attention_row_bytes == attention_row_bytes && state_index_row_bytes == index_row_bytes);

constexpr size_t staging_bytes = size_t{2} << 20;

}  // namespace

// Collects the places of parts in the order of the bytes.
class StateCopier::Spans {
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
  std::vector<Span> take() { return std::move(spans_); }

 private:
  std::vector<Span> spans_;
};

StateCopier::StateCopier(const model::ModelShape& shape, const ArenaLayout& layout)
    : shape_(shape), layout_(layout), staging_(staging_bytes, "copies of states") {}

std::vector<StateCopier::Span> StateCopier::spans_of(const CudaState& state, uint8_t* arena,
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

void StateCopier::to_host(const std::vector<Span>& spans, std::byte* out) {
  size_t filled = 0;
  const auto flush = [&] {
    check(cudaStreamSynchronize(stream_.get()), "exported state");
    std::memcpy(out, staging_.data(), filled);
    out += filled;
    filled = 0;
  };
  for (const Span& span : spans) {
    for (size_t done = 0; done < span.bytes;) {
      const size_t piece = std::min(span.bytes - done, staging_.size() - filled);
      if (span.device == nullptr) {
        std::memset(staging_.data() + filled, 0, piece);
      } else {
        check(cudaMemcpyAsync(staging_.data() + filled, span.device + done, piece, cudaMemcpyDeviceToHost,
                              stream_.get()),
              "exported state");
      }
      done += piece;
      filled += piece;
      if (filled == staging_.size()) flush();
    }
  }
  flush();
}

void StateCopier::to_device(const std::vector<Span>& spans, const std::byte* bytes) {
  size_t filled = 0;
  for (const Span& span : spans) {
    for (size_t done = 0; done < span.bytes;) {
      if (filled == staging_.size()) {
        check(cudaStreamSynchronize(stream_.get()), "imported state");
        filled = 0;
      }
      const size_t piece = std::min(span.bytes - done, staging_.size() - filled);
      if (span.device != nullptr) {
        std::memcpy(staging_.data() + filled, bytes, piece);
        check(cudaMemcpyAsync(span.device + done, staging_.data() + filled, piece, cudaMemcpyHostToDevice,
                              stream_.get()),
              "imported state");
        filled += piece;
      }
      done += piece;
      bytes += piece;
    }
  }
  check(cudaStreamSynchronize(stream_.get()), "imported state");
}

void StateCopier::export_parts(const CudaStateImage& image, const StateParts& parts, std::byte* out) {
  std::vector<Span> spans = spans_of(image.state, image.arena.data(), parts);
  if (parts.is_frontier()) {
    spans.push_back({image.state.kept_logits(0)->values.get(), parts.logits.bytes()});
  }
  to_host(spans, out);
}

void StateCopier::import_parts(CudaSequence& sequence, const StateParts& parts, const std::byte* bytes) {
  CudaState& state = sequence.state;
  for (size_t l = 0; l < parts.layers.size(); ++l) {
    const StateLayerParts& part = parts.layers[l];
    state.compressed[l].extend(static_cast<size_t>(part.attention.first) + part.attention.count);
    state.index[l].extend(static_cast<size_t>(part.index.first) + part.index.count);
  }
  to_device(spans_of(state, sequence.arena.data(), parts), bytes);
  if (!parts.is_frontier()) {
    state.imported = parts.position;
    return;
  }
  state.position = parts.position;
  // The rings hold what is needed to go on, and nothing to go back.
  state.furthest = parts.position + retractable_tokens;
  sequence.publish_tables(stream_.get());
}

}  // namespace ds4::cuda
