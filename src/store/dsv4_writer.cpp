// Writing payloads that the original reads (docs/formats.md §14.2).
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "store/dsv4_layout.hpp"
#include "store/dsv4_payload.hpp"
#include "store/packed_rows.hpp"

namespace ds4::store {
Result<PayloadWriter> PayloadWriter::begin(ByteSink& sink, uint64_t offset, const StateLayout& layout,
                                           std::span<const Token> tokens, const PayloadHeader& header) {
  PayloadWriter writer(sink, offset, layout, header);
  DS4_TRY(writer.write_start(tokens));
  return writer;
}

Result<void> PayloadWriter::write_start(std::span<const Token> tokens) {
  const auto layers = static_cast<uint32_t>(layout_.ratios().size());
  const uint32_t fields[payload_header_fields] = {payload_magic,
                                                  1,
                                                  header_.context,
                                                  header_.prefill_chunk,
                                                  header_.raw_capacity,
                                                  header_.window,
                                                  header_.row_capacity,
                                                  header_.tokens,
                                                  layers,
                                                  model::head_dim,
                                                  model::index_head_dim,
                                                  layout_.vocabulary(),
                                                  header_.live_rows};
  DS4_TRY(sink_->write(offset_, std::as_bytes(std::span(fields))));
  DS4_TRY(sink_->write(offset_ + sizeof fields, std::as_bytes(tokens)));
  std::vector<uint32_t> counts(2 * layers);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const uint32_t ratio = layout_.ratios()[layer];
    if (ratio != 0) counts[layer] = header_.tokens / ratio;
    if (ratio == model::csa_ratio) counts[layers + layer] = header_.tokens / ratio;
  }
  return sink_->write(offset_ + payload_counts_offset(layout_, header_.tokens),
                      std::as_bytes(std::span(counts)));
}

Result<void> PayloadWriter::unpack_rows(std::span<const std::byte> bytes, const StatePart& part,
                                        uint64_t at) {
  const bool index = part.row_bytes == state_index_row_bytes;
  const size_t dim = index ? model::index_head_dim : model::head_dim;
  const size_t rows_of_piece = payload_piece_bytes / (dim * sizeof(float));
  std::vector<float> piece(std::min(rows_of_piece, part.count) * dim);
  const std::byte* next = bytes.data() + part.offset;
  for (size_t done = 0; done < part.count; done += rows_of_piece) {
    const size_t rows = std::min(rows_of_piece, part.count - done);
    for (size_t row = 0; row < rows; ++row, next += part.row_bytes) {
      if (index) {
        unpack_index_row(next, piece.data() + row * dim);
      } else {
        unpack_attention_row(next, piece.data() + row * dim);
      }
    }
    DS4_TRY(sink_->write(offset_ + at + done * dim * sizeof(float),
                         std::as_bytes(std::span(piece).first(rows * dim))));
  }
  return {};
}

Result<void> PayloadWriter::write_matrix(std::span<const std::byte> bytes, const StatePart& part,
                                         size_t layer, float unwritten, uint64_t at) {
  const uint32_t ratio = layout_.ratios()[layer];
  if (part.row_bytes == 0) return {};
  std::vector<float> matrix(model::compressor_rows(ratio) * part.row_bytes / sizeof(float), unwritten);
  const uint64_t first = first_matrix_row(part, ratio, header_.tokens);
  std::memcpy(matrix.data() + first * part.row_bytes / sizeof(float), bytes.data() + part.offset,
              part.bytes());
  return sink_->write(offset_ + at, std::as_bytes(std::span(matrix)));
}

Result<void> PayloadWriter::unpack_layers(const StateParts& parts, std::span<const std::byte> bytes) {
  const auto places = payload_places(layout_, header_.tokens);
  for (size_t layer = 0; layer < places.size(); ++layer) {
    const PayloadPlaces& place = places[layer];
    const StateLayerParts& part = parts.layers[layer];
    DS4_TRY(unpack_rows(bytes, part.window, place.window));
    DS4_TRY(unpack_rows(bytes, part.attention, place.rows + part.attention.first * payload_row_bytes));
    DS4_TRY(write_matrix(bytes, part.values, layer, unwritten_value, place.values));
    DS4_TRY(write_matrix(bytes, part.scores, layer, unwritten_score, place.scores));
    DS4_TRY(unpack_rows(bytes, part.index, place.index_rows + part.index.first * payload_index_row_bytes));
    DS4_TRY(write_matrix(bytes, part.index_values, layer, unwritten_value, place.index_values));
    DS4_TRY(write_matrix(bytes, part.index_scores, layer, unwritten_score, place.index_scores));
  }
  return {};
}

Result<void> PayloadWriter::add_block(std::span<const std::byte> block) {
  return unpack_layers(layout_.block(blocks_++), block);
}

Result<void> PayloadWriter::finish(std::span<const std::byte> frontier) {
  const StateParts parts = layout_.frontier(header_.tokens);
  DS4_TRY(unpack_layers(parts, frontier));
  return sink_->write(offset_ + payload_logits_offset(header_.tokens),
                      frontier.subspan(parts.logits.offset, parts.logits.bytes()));
}

}  // namespace ds4::store
