#include "backend/cpu/compressor.hpp"

#include <algorithm>
#include <array>

#include "backend/cpu/rms_norm.hpp"
#include "backend/cpu/vector_ops.hpp"

namespace ds4::cpu {
namespace {

// One row from the state of a complete window.
void pool_window(CompressorState& state, uint32_t dim, float* out) {
  std::array<const float*, model::hca_ratio> values, scores;
  size_t count = 0;
  if (state.ratio() == model::csa_ratio) {
    // The previous window gives its first half of columns, the current one its second half.
    for (size_t row = 0; row < 2 * model::csa_ratio; ++row) {
      const size_t column = row < model::csa_ratio ? 0 : dim;
      values[count] = state.value_row(row) + column;
      scores[count++] = state.score_row(row) + column;
    }
  } else {
    for (size_t row = 0; row < state.ratio(); ++row) {
      values[count] = state.value_row(row);
      scores[count++] = state.score_row(row);
    }
  }
  pool_columns(values.data(), scores.data(), count, dim, out);
}

}  // namespace

void compress_token(CompressorState& state, const CompressorParameters& parameters, const RowCodec& codec,
                    uint64_t position, const float* value, const float* gate, RowPages& rows) {
  const uint32_t ratio = state.ratio(), width = state.width(), dim = parameters.dim;
  const size_t place = position % ratio;
  const size_t row = ratio == model::csa_ratio ? model::csa_ratio + place : place;
  std::copy(value, value + width, state.value_row(row));
  const float* ape = parameters.ape + place * width;
  float* score = state.score_row(row);
  for (size_t i = 0; i < width; ++i) score[i] = gate[i] + ape[i];
  if (place + 1 != ratio) return;

  std::array<float, model::head_dim> pooled;
  pool_window(state, dim, pooled.data());
  rms_norm(pooled.data(), parameters.norm, dim, pooled.data());
  rotate(pooled.data() + dim - model::rope_dim, rope_angles(position + 1 - ratio, *parameters.frequencies));
  std::array<std::byte, model::head_dim * sizeof(float)> packed;
  if (dim == model::head_dim) {
    codec.encode_attention(pooled.data(), packed.data());
  } else {
    codec.encode_index(pooled.data(), packed.data());
  }
  rows.append(packed.data());
  if (ratio == model::csa_ratio) state.shift();
}

}  // namespace ds4::cpu
