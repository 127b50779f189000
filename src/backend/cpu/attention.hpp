// Attention of one token over its window and its compressed rows, all heads sharing the rows (docs/model.md
// §5).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kv_rows.hpp"
#include "backend/cpu/row_pages.hpp"
#include "backend/cpu/sequence_state.hpp"

namespace ds4::cpu {

/// Where the rows a token sees are found. Raw rows of the chunk being evaluated are not in the window yet.
struct VisibleRows {
  const RawWindow* window = nullptr;
  const std::byte* chunk_rows = nullptr;  // packed rows of the chunk, position chunk_start first
  uint64_t chunk_start = 0;
  uint64_t position = 0;                 // of the token
  const RowPages* compressed = nullptr;  // null: none
  size_t visible = 0;                    // leading compressed rows the token may see
  const uint32_t* selected = nullptr;    // if not null: exactly these `visible` rows, ascending
};

/// Number of raw rows a token sees, its own included.
size_t raw_row_count(uint64_t position);

/// Floats of score scratch that attend() needs for `count` rows.
size_t attention_score_floats(size_t count);

/// Decodes rows [begin, end) of the token's list (raw rows oldest first, then compressed rows ascending) to
/// out [end - begin][512].
void gather_rows(const VisibleRows& visible, const RowCodec& codec, size_t begin, size_t end, float* out);

/// Replaces query rows by attention outputs, for `heads` heads: query [heads][512] in and out, rows
/// [count][512].
void attend(float* query, size_t heads, const float* sinks, const float* rows, size_t count, float* scores);

}  // namespace ds4::cpu
