#include "backend/cpu/kv_rows.hpp"

#include <cstdint>
#include <cstring>

#include "format/f16.hpp"
#include "format/fp4_row.hpp"
#include "format/fp8_e4m3.hpp"
#include "format/fp8_row.hpp"
#include "format/hadamard.hpp"
#include "model/shape.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kv_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ds4::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 448 E4M3 codes to F32. Shifted into place, the exponent and mantissa bits of a code are an F32 whose value
// is too small by 2^120 (127 - 7 bias steps), subnormal codes included.
void DecodeCodes(const uint8_t* HWY_RESTRICT codes, const float* HWY_RESTRICT scale,
                 float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<uint8_t, decltype(df)> d8;
  const size_t lanes = hn::Lanes(df);
  const auto magnitude = hn::Set(di, 0x7f), sign = hn::Set(di, 0x80);
  const auto rebias = hn::Set(df, 0x1p120f);
  for (size_t block = 0; block < model::nope_dim / model::fp8_block; ++block) {
    const auto factor = hn::Set(df, scale[block]);
    const size_t begin = block * model::fp8_block;
    for (size_t i = begin; i < begin + model::fp8_block; i += lanes) {
      const auto code = hn::PromoteTo(di, hn::LoadU(d8, codes + i));
      const auto bits =
          hn::Or(hn::ShiftLeft<20>(hn::And(code, magnitude)), hn::ShiftLeft<24>(hn::And(code, sign)));
      hn::StoreU(hn::Mul(hn::Mul(hn::BitCast(df, bits), rebias), factor), df, out + i);
    }
  }
}

// F16 to F32. Not hn::PromoteTo: on processors without the conversion it makes finite numbers of infinities
// and NaNs.
void DecodeTail(const uint16_t* HWY_RESTRICT tail, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<uint16_t, decltype(df)> d16;
  const auto magnitude = hn::Set(di, 0x7fff), sign = hn::Set(di, 0x8000);
  const auto largest = hn::Set(di, 0x7bff), infinity = hn::Set(di, 0x7f800000);
  const auto rebias = hn::Set(df, 0x1p112f);
  for (size_t i = 0; i < model::rope_dim; i += hn::Lanes(df)) {
    const auto half = hn::PromoteTo(di, hn::LoadU(d16, tail + i));
    const auto absolute = hn::And(half, magnitude);
    const auto shifted = hn::ShiftLeft<13>(absolute);
    const auto finite = hn::BitCast(di, hn::Mul(hn::BitCast(df, shifted), rebias));
    const auto bits = hn::IfThenElse(hn::Gt(absolute, largest), hn::Or(shifted, infinity), finite);
    hn::StoreU(hn::BitCast(df, hn::Or(bits, hn::ShiftLeft<16>(hn::And(half, sign)))), df, out + i);
  }
}

}  // namespace ds4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::cpu {

HWY_EXPORT(DecodeCodes);
HWY_EXPORT(DecodeTail);

namespace {

constexpr size_t exponents_offset = model::nope_dim;
constexpr size_t tail_offset = 456;
constexpr size_t packed_attention_bytes = tail_offset + model::rope_dim * sizeof(uint16_t);
static_assert(packed_attention_bytes == 584);

}  // namespace

size_t RowCodec::attention_bytes() const {
  return packed_ ? packed_attention_bytes : model::head_dim * sizeof(float);
}

size_t RowCodec::index_bytes() const {
  return packed_ ? sizeof(format::Fp4Row) : model::index_head_dim * sizeof(float);
}

void RowCodec::encode_attention(const float* row, std::byte* out) const {
  if (!packed_) {
    std::memcpy(out, row, model::head_dim * sizeof(float));
    return;
  }
  format::Fp8Row packed;
  format::encode_fp8_row(row, packed);
  std::memcpy(out, &packed, sizeof(packed));
  out[exponents_offset + sizeof(packed.exponents)] = std::byte{0};
  uint16_t tail[model::rope_dim];
  for (size_t i = 0; i < model::rope_dim; ++i) tail[i] = format::f32_to_f16(row[model::nope_dim + i]);
  std::memcpy(out + tail_offset, tail, sizeof(tail));
}

void RowCodec::decode_attention(const std::byte* row, float* out) const {
  if (!packed_) {
    std::memcpy(out, row, model::head_dim * sizeof(float));
    return;
  }
  float scale[model::nope_dim / model::fp8_block];
  for (size_t block = 0; block < std::size(scale); ++block) {
    scale[block] = format::e8m0_to_f32(static_cast<uint8_t>(row[exponents_offset + block]));
  }
  HWY_DYNAMIC_DISPATCH(DecodeCodes)(reinterpret_cast<const uint8_t*>(row), scale, out);
  uint16_t tail[model::rope_dim];
  std::memcpy(tail, row + tail_offset, sizeof(tail));
  HWY_DYNAMIC_DISPATCH(DecodeTail)(tail, out + model::nope_dim);
}

void RowCodec::encode_index(float* row, std::byte* out) const {
  if (!packed_) {
    std::memcpy(out, row, model::index_head_dim * sizeof(float));
    return;
  }
  format::hadamard_128(row);
  format::Fp4Row packed;
  format::encode_fp4_row(row, packed);
  std::memcpy(out, &packed, sizeof(packed));
}

void RowCodec::decode_index(const std::byte* row, float* out) const {
  if (!packed_) {
    std::memcpy(out, row, model::index_head_dim * sizeof(float));
    return;
  }
  format::Fp4Row packed;
  std::memcpy(&packed, row, sizeof(packed));
  format::decode_fp4_row(packed, out);
}

void RowCodec::round_index_query(float* head) const {
  if (!packed_) return;
  format::hadamard_128(head);
  format::fp4_round_trip(head);
}

}  // namespace ds4::cpu
#endif
