#include "backend/cpu/attention.hpp"

#include <algorithm>
#include <array>

#include "backend/cpu/vector_ops.hpp"

namespace ds4::cpu {
namespace {

constexpr float score_scale = 0.044194173824159216f;  // 512^(-1/2)
constexpr size_t heads_at_once = 16;                  // bounds the score buffer

size_t score_stride(size_t count) {
  return (count + 15) / 16 * 16;
}

}  // namespace

size_t attention_score_floats(size_t count) {
  return heads_at_once * score_stride(count);
}

size_t raw_row_count(uint64_t position) {
  return std::min<uint64_t>(position + 1, model::window);
}

void gather_rows(const VisibleRows& visible, const RowCodec& codec, size_t begin, size_t end, float* out) {
  const size_t raw = raw_row_count(visible.position);
  for (size_t i = begin; i < end; ++i, out += model::head_dim) {
    const std::byte* row;
    if (i < raw) {
      const uint64_t position = visible.position + 1 - raw + i;
      row = position >= visible.chunk_start
                ? visible.chunk_rows + (position - visible.chunk_start) * codec.attention_bytes()
                : visible.window->row(position);
    } else {
      const size_t index = i - raw;
      row = (*visible.compressed)[visible.selected != nullptr ? visible.selected[index] : index];
    }
    codec.decode_attention(row, out);
  }
}

void attend(float* query, size_t heads, const float* sinks, const float* rows, size_t count, float* scores) {
  const size_t stride = score_stride(count);
  std::array<float, heads_at_once> factor;
  for (size_t first = 0; first < heads; first += heads_at_once) {
    const size_t n = std::min(heads_at_once, heads - first);
    float* q = query + first * model::head_dim;
    row_scores(q, n, rows, count, model::head_dim, score_scale, scores, stride);
    for (size_t h = 0; h < n; ++h) {
      factor[h] = 1.0f / softmax_with_sink(scores + h * stride, count, sinks[first + h]);
    }
    weighted_rows(scores, stride, n, rows, count, model::head_dim, factor.data(), q);
  }
}

}  // namespace ds4::cpu
