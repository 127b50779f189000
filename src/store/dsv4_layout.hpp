// Where the pieces of a payload lie (docs/formats.md §14.2).
#pragma once

#include <cstdint>
#include <vector>

#include "ds4/state.hpp"
#include "model/shape.hpp"

namespace ds4::store {

inline constexpr uint32_t payload_magic = 0x34565344;  // "DSV4"
inline constexpr uint32_t payload_header_fields = 13;
inline constexpr uint64_t payload_tokens_offset = payload_header_fields * sizeof(uint32_t);
inline constexpr uint64_t payload_row_bytes = model::head_dim * sizeof(float);
inline constexpr uint64_t payload_index_row_bytes = model::index_head_dim * sizeof(float);
/// Rows are converted in pieces of this size.
inline constexpr size_t payload_piece_bytes = size_t{256} << 10;

/// What a compressor's matrices hold where no token has written: the score takes the row out of every
/// pooling.
inline constexpr float unwritten_value = 0.0f, unwritten_score = -1.0e30f;

/// Offsets of the pieces of one layer from the start of the payload. Pieces that a layer lacks are empty.
struct PayloadPlaces {
  uint64_t window = 0, rows = 0, values = 0, scores = 0, index_rows = 0, index_values = 0, index_scores = 0,
           end = 0;
};
std::vector<PayloadPlaces> payload_places(const StateLayout& layout, uint32_t tokens);

inline uint64_t payload_logits_offset(uint32_t tokens) {
  return payload_tokens_offset + sizeof(uint32_t) * uint64_t{tokens};
}
inline uint64_t payload_counts_offset(const StateLayout& layout, uint32_t tokens) {
  return payload_logits_offset(tokens) + sizeof(float) * uint64_t{layout.vocabulary()};
}

/// The row of a compressor's matrices that belongs to the first token of `part`; those of the others follow.
/// With ratio 4, four rows of the window before the open one come first.
inline uint64_t first_matrix_row(const StatePart& part, uint32_t ratio, uint32_t tokens) {
  return ratio == model::csa_ratio && part.first == tokens / ratio * ratio ? ratio : 0;
}

}  // namespace ds4::store
