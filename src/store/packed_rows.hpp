// Cached rows as values and as the bytes of a portable state (docs/formats.md §11).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ds4/state.hpp"
#include "format/f16.hpp"
#include "format/fp4_row.hpp"
#include "format/fp8_row.hpp"
#include "model/shape.hpp"

namespace ds4::store {

inline constexpr size_t attention_tail_offset = 456;
static_assert(attention_tail_offset + 2 * model::rope_dim == state_attention_row_bytes);
static_assert(sizeof(format::Fp4Row) == state_index_row_bytes);

inline void pack_attention_row(const float* values, std::byte* out) {
  format::Fp8Row row;
  format::encode_fp8_row(values, row);
  std::memcpy(out, &row, sizeof row);
  out[sizeof row] = std::byte{0};
  format::encode_f16(values + model::nope_dim, model::rope_dim, out + attention_tail_offset);
}

inline void unpack_attention_row(const std::byte* row, float* out) {
  format::Fp8Row codes;
  std::memcpy(&codes, row, sizeof codes);
  format::decode_fp8_row(codes, out);
  format::decode_f16(row + attention_tail_offset, model::rope_dim, out + model::nope_dim);
}

/// Index rows are stored behind their Hadamard transform, here and in the original's files.
inline void pack_index_row(const float* values, std::byte* out) {
  format::Fp4Row row;
  format::encode_fp4_row(values, row);
  std::memcpy(out, &row, sizeof row);
}

inline void unpack_index_row(const std::byte* row, float* out) {
  format::Fp4Row codes;
  std::memcpy(&codes, row, sizeof codes);
  format::decode_fp4_row(codes, out);
}

}  // namespace ds4::store
