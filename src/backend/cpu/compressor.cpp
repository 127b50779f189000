#include "backend/cpu/compressor.hpp"

#include <algorithm>
#include <array>

#include "backend/cpu/rms_norm.hpp"
#include "backend/cpu/vector_ops.hpp"

namespace ds4::cpu {
namespace {

// One row from the window that ends before `end`.
void pool_window(CompressorState& state, int64_t end, uint32_t dim, float* out) {
  std::array<const float*, model::hca_ratio> values, scores;
  const int64_t ratio = state.ratio(), count = model::compressor_rows(state.ratio());
  for (int64_t row = 0; row < count; ++row) {
    // Ratio 4: the previous window gives its first half of columns, this one its second half.
    const size_t column = count > ratio && row >= ratio ? dim : 0;
    values[static_cast<size_t>(row)] = state.value_row(end - count + row) + column;
    scores[static_cast<size_t>(row)] = state.score_row(end - count + row) + column;
  }
  pool_columns(values.data(), scores.data(), static_cast<size_t>(count), dim, out);
}

}  // namespace

void compress_token(CompressorState& state, const CompressorParameters& parameters, const RowCodec& codec,
                    uint64_t position, const float* value, const float* gate, RowPages& rows) {
  const uint32_t ratio = state.ratio(), width = state.width(), dim = parameters.dim;
  const size_t place = position % ratio;
  const auto signed_position = static_cast<int64_t>(position);
  std::copy(value, value + width, state.value_row(signed_position));
  const float* ape = parameters.ape + place * width;
  float* score = state.score_row(signed_position);
  for (size_t i = 0; i < width; ++i) score[i] = gate[i] + ape[i];
  if (place + 1 != ratio) return;

  std::array<float, model::head_dim> pooled;
  pool_window(state, signed_position + 1, dim, pooled.data());
  rms_norm(pooled.data(), parameters.norm, dim, pooled.data());
  rotate(pooled.data() + dim - model::rope_dim, rope_angles(position + 1 - ratio, *parameters.frequencies));
  std::array<std::byte, model::head_dim * sizeof(float)> packed;
  if (dim == model::head_dim) {
    codec.encode_attention(pooled.data(), packed.data());
  } else {
    codec.encode_index(pooled.data(), packed.data());
  }
  rows.append(packed.data());
}

}  // namespace ds4::cpu
