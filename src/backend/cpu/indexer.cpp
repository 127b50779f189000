#include "backend/cpu/indexer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/vector_ops.hpp"
#include "model/shape.hpp"

namespace ds4::cpu {

size_t index_scratch_floats(size_t heads) {
  return index_block_rows * (model::index_head_dim + heads);
}

void score_index_rows(const IndexQueries& queries, const RowPages& keys, const RowCodec& codec, size_t begin,
                      size_t end, float* out, size_t out_stride, float* scratch) {
  constexpr size_t dim = model::index_head_dim;
  float* decoded = scratch;
  float* head_scores = scratch + index_block_rows * dim;
  for (size_t first = begin; first < end; first += index_block_rows) {
    const size_t n = std::min(index_block_rows, end - first);
    for (size_t i = 0; i < n; ++i) codec.decode_index(keys[first + i], decoded + i * dim);
    for (size_t t = 0; t < queries.count; ++t) {
      row_scores(queries.query + t * queries.query_stride, queries.heads, decoded, n, dim, 1.0f, head_scores,
                 index_block_rows);
      weighted_relu(head_scores, index_block_rows, queries.heads,
                    queries.head_weights + t * queries.weight_stride, n, out + t * out_stride + first);
    }
  }
}

void select_rows(const float* scores, size_t visible, size_t top_k, uint32_t* selected, uint32_t* order) {
  std::iota(order, order + visible, 0u);
  // A NaN score (a damaged model) ranks last; without that the order would not be strict.
  const auto rank = [&](uint32_t row) { return std::isnan(scores[row]) ? -INFINITY : scores[row]; };
  std::nth_element(order, order + top_k - 1, order + visible, [&](uint32_t a, uint32_t b) {
    const float x = rank(a), y = rank(b);
    return x > y || (x == y && a < b);
  });
  std::copy(order, order + top_k, selected);
  std::sort(selected, selected + top_k);
}

}  // namespace ds4::cpu
