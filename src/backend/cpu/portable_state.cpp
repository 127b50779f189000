#include "backend/cpu/portable_state.hpp"

#include <cstring>
#include <vector>

namespace ds4::cpu {
namespace {

void export_pages(const RowPages& rows, const StatePart& part, std::byte* out) {
  for (size_t i = 0; i < part.count; ++i) {
    std::memcpy(out + part.offset + i * part.row_bytes, rows[static_cast<size_t>(part.first) + i],
                part.row_bytes);
  }
}

void import_pages(RowPages& rows, const StatePart& part, const std::byte* bytes) {
  for (size_t i = 0; i < part.count; ++i) rows.append(bytes + part.offset + i * part.row_bytes);
}

void export_window(const RawWindow& window, const StatePart& part, size_t count, std::byte* out) {
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(out + part.offset + i * part.row_bytes, window.row(part.first + i), part.row_bytes);
  }
}

void import_window(RawWindow& window, const StatePart& part, const std::byte* bytes) {
  for (size_t i = 0; i < part.count; ++i) {
    std::memcpy(window.slot(part.first + i), bytes + part.offset + i * part.row_bytes, part.row_bytes);
  }
}

void export_compressor(const CompressorState& state, const StatePart& values, const StatePart& scores,
                       std::byte* out) {
  for (size_t i = 0; i < values.count; ++i) {
    const auto position = static_cast<int64_t>(values.first + i);
    std::memcpy(out + values.offset + i * values.row_bytes, state.value_row(position), values.row_bytes);
    std::memcpy(out + scores.offset + i * scores.row_bytes, state.score_row(position), scores.row_bytes);
  }
}

void import_compressor(CompressorState& state, const StatePart& values, const StatePart& scores,
                       const std::byte* bytes) {
  for (size_t i = 0; i < values.count; ++i) {
    const auto position = static_cast<int64_t>(values.first + i);
    std::memcpy(state.value_row(position), bytes + values.offset + i * values.row_bytes, values.row_bytes);
    std::memcpy(state.score_row(position), bytes + scores.offset + i * scores.row_bytes, scores.row_bytes);
  }
}

}  // namespace

void export_parts(const SequenceState& state, const StateParts& parts, std::byte* out) {
  for (size_t l = 0; l < parts.layers.size(); ++l) {
    const LayerState& layer = state.layers[l];
    const StateLayerParts& part = parts.layers[l];
    export_window(layer.window, part.window, part.window.count, out);
    export_pages(layer.compressed, part.attention, out);
    export_compressor(layer.compressor, part.values, part.scores, out);
    export_pages(layer.index_rows, part.index, out);
    export_compressor(layer.index_compressor, part.index_values, part.index_scores, out);
  }
  const StatePart& window = parts.drafter_window;
  if (window.count == 0) return;
  // The row of the last token needs the token after it.
  export_window(state.drafter->layer.window, window, window.count - 1, out);
  std::memset(out + window.offset + (window.count - 1) * window.row_bytes, 0, window.row_bytes);
  const StatePart& streams = parts.drafter_streams;
  std::memcpy(out + streams.offset, state.drafter->streams(streams.first), streams.bytes());
}

bool follows(const SequenceState& state, const StateParts& parts) {
  for (size_t l = 0; l < parts.layers.size(); ++l) {
    const LayerState& layer = state.layers[l];
    const StateLayerParts& part = parts.layers[l];
    if (layer.compressed.size() != part.attention.first || layer.index_rows.size() != part.index.first) {
      return false;
    }
  }
  return true;
}

void import_parts(SequenceState& state, const StateParts& parts, const std::byte* bytes) {
  for (size_t l = 0; l < parts.layers.size(); ++l) {
    LayerState& layer = state.layers[l];
    const StateLayerParts& part = parts.layers[l];
    import_window(layer.window, part.window, bytes);
    import_pages(layer.compressed, part.attention, bytes);
    import_compressor(layer.compressor, part.values, part.scores, bytes);
    import_pages(layer.index_rows, part.index, bytes);
    import_compressor(layer.index_compressor, part.index_values, part.index_scores, bytes);
  }
  if (!parts.is_frontier()) return;
  if (state.drafter) {
    import_window(state.drafter->layer.window, parts.drafter_window, bytes);
    const StatePart& streams = parts.drafter_streams;
    std::vector<float> values(streams.bytes() / sizeof(float));
    std::memcpy(values.data(), bytes + streams.offset, streams.bytes());
    state.drafter->keep_streams(streams.first, values);
  }
  state.position = parts.position;
  // The rings hold what is needed to go on, and nothing to go back.
  state.furthest = parts.position + retractable_tokens;
}

}  // namespace ds4::cpu
