#include "store/dsv4_layout.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "store/dsv4_payload.hpp"

namespace ds4::store {

StateLayout flash_layout() {
  const model::ModelShape flash = model::known_shape(model::Variant::flash);
  return {flash.ratios, flash.width, flash.vocabulary, false};
}

Result<void> require_flash(const StateLayout& layout) {
  const StateLayout flash = flash_layout();
  if (layout.ratios() == flash.ratios() && layout.vocabulary() == flash.vocabulary()) return {};
  return fail(
      ErrorCode::unsupported,
      "KVC files hold states of DeepSeek V4 Flash only ({} layers, vocabulary {}), and this model has {} "
      "layers and a vocabulary of {}",
      flash.ratios().size(), flash.vocabulary(), layout.ratios().size(), layout.vocabulary());
}

std::vector<PayloadPlaces> payload_places(const StateLayout& layout, uint32_t tokens) {
  std::vector<PayloadPlaces> places;
  places.reserve(layout.ratios().size());
  uint64_t at = payload_counts_offset(layout, tokens) + 2 * sizeof(uint32_t) * layout.ratios().size();
  const auto take = [&](uint64_t bytes) {
    const uint64_t begin = at;
    at += bytes;
    return begin;
  };
  const auto matrix_bytes = [](uint32_t ratio, uint32_t dim) {
    return sizeof(float) * uint64_t{model::compressor_rows(ratio)} * model::compressor_width(ratio, dim);
  };
  for (const uint32_t ratio : layout.ratios()) {
    PayloadPlaces layer;
    layer.window = take(std::min(tokens, model::window) * payload_row_bytes);
    if (ratio != 0) {
      layer.rows = take(tokens / ratio * payload_row_bytes);
      layer.values = take(matrix_bytes(ratio, model::head_dim));
      layer.scores = take(matrix_bytes(ratio, model::head_dim));
    }
    if (ratio == model::csa_ratio) {
      layer.index_rows = take(tokens / ratio * payload_index_row_bytes);
      layer.index_values = take(matrix_bytes(ratio, model::index_head_dim));
      layer.index_scores = take(matrix_bytes(ratio, model::index_head_dim));
    }
    layer.end = at;
    places.push_back(layer);
  }
  return places;
}

uint64_t payload_bytes(const StateLayout& layout, uint32_t tokens) {
  return payload_places(layout, tokens).back().end;
}

PayloadHeader payload_header(uint32_t tokens) {
  constexpr uint32_t chunk = 2048, ring_alignment = 256, largest_ring = 8192;
  PayloadHeader header;
  header.tokens = tokens;
  header.context = std::max(tokens == UINT32_MAX ? tokens : tokens + 1, chunk);
  header.prefill_chunk = chunk;
  header.window = model::window;
  const uint32_t rows = std::min(model::window + chunk, header.context);
  const uint32_t ring = (rows + ring_alignment - 1) / ring_alignment * ring_alignment;
  header.raw_capacity = std::min({ring, largest_ring, header.context});
  header.row_capacity = header.context / model::csa_ratio + 2;
  header.live_rows = std::min(tokens, header.window);
  return header;
}

}  // namespace ds4::store
