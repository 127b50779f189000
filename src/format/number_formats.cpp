#include "format/number_formats.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "format/bf16.hpp"
#include "format/f16.hpp"
#include "format/iq2_xxs.hpp"
#include "format/mxfp4.hpp"
#include "format/q2_k.hpp"
#include "format/q4_k.hpp"
#include "format/q8_0.hpp"

namespace ds4::format {

void decode_row(TensorType type, const std::byte* row, size_t elements, float* out) {
  switch (type) {
    case TensorType::f32:
      return decode_f32(row, elements, out);
    case TensorType::f16:
      return decode_f16(row, elements, out);
    case TensorType::bf16:
      return decode_bf16(row, elements, out);
    case TensorType::q8_0:
      return decode_q8_0(row, elements, out);
    case TensorType::q4_k:
      return decode_q4_k(row, elements, out);
    case TensorType::q2_k:
      return decode_q2_k(row, elements, out);
    case TensorType::iq2_xxs:
      return decode_iq2_xxs(row, elements, out);
    case TensorType::mxfp4:
      return decode_mxfp4(row, elements, out);
    default:
      return;
  }
}

void encode_row(TensorType type, const float* row, size_t elements, std::byte* out) {
  switch (type) {
    case TensorType::f32:
      return encode_f32(row, elements, out);
    case TensorType::f16:
      return encode_f16(row, elements, out);
    case TensorType::bf16:
      return encode_bf16(row, elements, out);
    case TensorType::q8_0:
      return encode_q8_0(row, elements, out);
    default:
      return;
  }
}

float largest_encodable(TensorType type) {
  constexpr float f16_max = 65504;
  switch (type) {
    case TensorType::q8_0:
      return f16_max * 127;
    case TensorType::f16:
    case TensorType::q4_k:
    case TensorType::q2_k:
    case TensorType::iq2_xxs:
      return f16_max;
    case TensorType::bf16:
      return bf16_to_f32(0x7f7f);
    default:
      return std::numeric_limits<float>::max();
  }
}

bool needs_importance(TensorType type) {
  return type == TensorType::iq2_xxs;
}

Result<std::vector<float>> prepare_importance(std::span<const float> importance) {
  float largest = 0;
  for (size_t i = 0; i < importance.size(); ++i) {
    if (!std::isfinite(importance[i]) || importance[i] < 0)
      return fail(ErrorCode::not_finite, "the importance of column {} is {}", i, importance[i]);
    largest = std::max(largest, importance[i]);
  }
  if (largest == 0) return std::vector<float>(importance.size(), 1.0f);
  const int exponent = std::ilogb(largest), even = exponent - (exponent & 1);
  std::vector<float> prepared(importance.size());
  for (size_t i = 0; i < importance.size(); ++i) {
    // In two steps: a power beyond the range of floats would not be exact.
    const float half = std::ldexp(importance[i], -even / 2);
    prepared[i] = std::max(std::ldexp(half, -even / 2), 0x1p-30f);
  }
  return prepared;
}

Result<void> check_encodable(TensorType type, const float* row, size_t elements) {
  float largest = 0;
  bool finite = true;
  for (size_t i = 0; i < elements; ++i) {
    finite &= std::isfinite(row[i]);
    largest = std::max(largest, std::fabs(row[i]));
  }
  if (!finite || largest > largest_encodable(type)) {
    const auto* bad = std::find_if(row, row + elements, [&](float value) {
      return !std::isfinite(value) || std::fabs(value) > largest_encodable(type);
    });
    if (!std::isfinite(*bad))
      return fail(ErrorCode::not_finite, "column {} holds a value that is not finite", bad - row);
    return fail(ErrorCode::unsupported, "column {} holds the value {}, too large for {}", bad - row, *bad,
                type_name(type));
  }
  return {};
}

Result<void> encode_weighted_row(TensorType type, const float* row, size_t elements, const float* importance,
                                 std::byte* out) {
  const auto traits = type_traits(type);
  if (!is_matrix_type(type) || elements % traits->block_elements != 0)
    return fail(ErrorCode::invalid_argument, "a row of {} values cannot be encoded as {}", elements,
                type_name(type));
  if (needs_importance(type) && !importance)
    return fail(ErrorCode::invalid_argument, "{} cannot be encoded without importance", type_name(type));
  DS4_TRY(check_encodable(type, row, elements));
  switch (type) {
    case TensorType::q4_k:
      encode_q4_k(row, elements, importance, out);
      break;
    case TensorType::q2_k:
      encode_q2_k(row, elements, importance, out);
      break;
    case TensorType::iq2_xxs:
      encode_iq2_xxs(row, elements, importance, out);
      break;
    case TensorType::mxfp4:
      encode_mxfp4(row, elements, importance, out);
      break;
    default:
      encode_row(type, row, elements, out);
  }
  return {};
}

}  // namespace ds4::format
