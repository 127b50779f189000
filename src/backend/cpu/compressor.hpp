// Compressor: pools the projected rows of a window of tokens into one cached row (docs/model.md §6).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kv_rows.hpp"
#include "backend/cpu/rope.hpp"
#include "backend/cpu/row_pages.hpp"
#include "backend/cpu/sequence_state.hpp"

namespace ds4::cpu {

/// The parts of a compressor's weights that are used outside matrix products.
struct CompressorParameters {
  const float* ape = nullptr;   // [ratio][width]
  const float* norm = nullptr;  // [dim]
  uint32_t dim = 0;             // 512: attention rows, 128: index rows
  const std::array<float, rope_pairs>* frequencies = nullptr;
};

/// Takes the projections of the token at `position` (value and gate, each `width` wide) into the state; when
/// the token completes a window, appends the finished row to `rows`. Prefill calls this token by token too:
/// batched and single-token evaluation share every step.
void compress_token(CompressorState& state, const CompressorParameters& parameters, const RowCodec& codec,
                    uint64_t position, const float* value, const float* gate, RowPages& rows);

}  // namespace ds4::cpu
