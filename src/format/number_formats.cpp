#include "format/number_formats.hpp"

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

}  // namespace ds4::format
