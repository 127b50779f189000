// The indexer of ratio-4 layers: which compressed rows a token attends to (docs/model.md §7).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kv_rows.hpp"
#include "backend/cpu/row_pages.hpp"

namespace ds4::cpu {

/// Rows scored at once; score rows must have room for a multiple of it.
inline constexpr size_t index_block_rows = 64;

/// Floats of scratch that score_index_rows() needs.
size_t index_scratch_floats(size_t heads);

/// out[row] = sum over heads of head_weight * max(0, query . key) for rows [begin, end) of `keys`, for
/// `count` tokens: query [count][heads][128] with `query_stride`, head_weights with `weight_stride`, out with
/// `out_stride`. begin is a multiple of 64; rows of `out` have room up to the next multiple of 64.
struct IndexQueries {
  const float* query = nullptr;
  size_t query_stride = 0;
  const float* head_weights = nullptr;
  size_t weight_stride = 0;
  size_t heads = 0;
  size_t count = 0;
};
void score_index_rows(const IndexQueries& queries, const RowPages& keys, const RowCodec& codec, size_t begin,
                      size_t end, float* out, size_t out_stride, float* scratch);

/// The `top_k` best of scores[0 .. visible), ascending by row; ties go to the lower row. Precondition:
/// visible > top_k. `order` is scratch for `visible` values.
void select_rows(const float* scores, size_t visible, size_t top_k, uint32_t* selected, uint32_t* order);

}  // namespace ds4::cpu
