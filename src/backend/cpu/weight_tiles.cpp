// Weight decoders through Highway.
// Layout: the formats' own (src/format), read 16 or 32 bytes at a time; blocks need no alignment.
// Preconditions: cols a multiple of 32 (256 for K-quants). Cost: about one to two instructions for 8 columns
// of codes, and four for a register of F32. Why: codes first, F32 from codes, so that each format is decoded
// in one place; a chunk of codes stays in the level-1 cache.
#include "backend/cpu/weight_tiles.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/int8_kernels.hpp"
#include "format/f16.hpp"
#include "format/fp4_e2m1.hpp"
#include "format/iq2_xxs.hpp"
#include "format/iq2_xxs_tables.hpp"
#include "format/mxfp4.hpp"
#include "format/number_formats.hpp"
#include "format/q2_k.hpp"
#include "format/q4_k.hpp"
#include "format/q8_0.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/weight_tiles.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef DS4_WEIGHT_TILES_ONCE
#define DS4_WEIGHT_TILES_ONCE
namespace ds4::cpu {

/// The sign patterns of IQ2_XXS as eight bytes of 0 or 255.
inline const std::array<uint64_t, 128>& sign_masks() {
  static const std::array<uint64_t, 128> masks = [] {
    std::array<uint64_t, 128> table{};
    for (size_t i = 0; i < table.size(); ++i) {
      for (size_t j = 0; j < 8; ++j) {
        if (format::kIq2XxsSigns[i] >> j & 1) table[i] |= uint64_t{255} << (8 * j);
      }
    }
    return table;
  }();
  return masks;
}

}  // namespace ds4::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace ds4::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using format::f16_to_f32;
using format::TensorType;

using D = hn::CappedTag<float, 16>;
constexpr size_t kBlock = 32;
constexpr size_t kChunkCols = 512;

#if HWY_TARGET == HWY_SCALAR

void DecodeCodes(TensorType type, const std::byte* row, size_t cols, const CodeRow& out) {
  decode_row_codes_plain(type, row, cols, out);
}

#else

const hn::FixedTag<uint8_t, 16> kBytes;
const hn::FixedTag<uint16_t, 8> kWords;

template <class T>
HWY_INLINE T ReadAt(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

HWY_INLINE const uint8_t* BytesAt(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

/// d times bytes: eight scales or minima.
HWY_INLINE void ScaledBytes(float d, uint64_t bytes, float* out) {
  const hn::CappedTag<float, 8> df;
  const hn::Rebind<int32_t, decltype(df)> di;
  const hn::Rebind<uint8_t, decltype(df)> db;
  uint8_t in[8];
  std::memcpy(in, &bytes, 8);
  for (size_t i = 0; i < 8; i += hn::Lanes(df)) {
    const auto values = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(db, in + i)));
    hn::StoreU(hn::Mul(hn::Set(df, d), values), df, out + i);
  }
}

void CodesQ8_0(const std::byte* row, size_t cols, const CodeRow& out) {
  for (size_t b = 0; b < cols / kBlock; ++b, row += sizeof(format::BlockQ8_0)) {
    std::memcpy(out.codes + kBlock * b, row + 2, kBlock);
    out.scales[b] = f16_to_f32(ReadAt<uint16_t>(row));
  }
}

void CodesMxfp4(const std::byte* row, size_t cols, const CodeRow& out) {
  const auto values = hn::LoadU(kBytes, reinterpret_cast<const uint8_t*>(format::kE2m1Doubled.data()));
  const auto nibble = hn::Set(kBytes, uint8_t{15});
  auto* codes = reinterpret_cast<uint8_t*>(out.codes);
  for (size_t b = 0; b < cols / kBlock; ++b, row += sizeof(format::BlockMXFP4), codes += kBlock) {
    const auto packed = hn::LoadU(kBytes, BytesAt(row) + 1);
    const auto high = hn::BitCast(kBytes, hn::ShiftRight<4>(hn::BitCast(kWords, packed)));
    hn::StoreU(hn::TableLookupBytes(values, hn::And(packed, nibble)), kBytes, codes);
    hn::StoreU(hn::TableLookupBytes(values, hn::And(high, nibble)), kBytes, codes + 16);
    out.scales[b] = format::mxfp4_doubled_scale(static_cast<uint8_t>(row[0]));
  }
}

void CodesQ4_K(const std::byte* row, size_t cols, CodeRow out) {
  const auto nibble = hn::Set(kBytes, uint8_t{15});
  auto* codes = reinterpret_cast<uint8_t*>(out.codes);
  for (size_t k = 0; k < cols / 256; ++k, row += sizeof(format::BlockQ4_K)) {
    for (size_t at = 0; at < 128; at += 16) {
      const auto packed = hn::LoadU(kBytes, BytesAt(row) + 16 + at);
      const auto high = hn::BitCast(kBytes, hn::ShiftRight<4>(hn::BitCast(kWords, packed)));
      uint8_t* to = codes + 256 * k + 64 * (at / 32) + at % 32;
      hn::StoreU(hn::And(packed, nibble), kBytes, to);
      hn::StoreU(hn::And(high, nibble), kBytes, to + 32);
    }
    uint8_t scales[8], mins[8];
    format::unpack_q4_k_scales(BytesAt(row) + 4, scales, mins);
    ScaledBytes(f16_to_f32(ReadAt<uint16_t>(row)), ReadAt<uint64_t>(scales), out.scales + 8 * k);
    ScaledBytes(f16_to_f32(ReadAt<uint16_t>(row + 2)), ReadAt<uint64_t>(mins), out.min0 + 8 * k);
    std::memcpy(out.min1 + 8 * k, out.min0 + 8 * k, 8 * sizeof(float));
  }
}

/// Two bits to codes: shifted right by kShift, times the scale. Bytes of a word do not carry: 3 * 15 < 256.
template <int kShift, class V>
HWY_INLINE void StoreTwoBits(V packed, uint8_t scale, uint8_t* out) {
  const auto bits = hn::And(hn::ShiftRight<kShift>(packed), hn::Set(kWords, uint16_t{0x0303}));
  hn::StoreU(hn::BitCast(kBytes, hn::Mul(bits, hn::Set(kWords, uint16_t{scale}))), kBytes, out);
}

void CodesQ2_K(const std::byte* row, size_t cols, const CodeRow& out) {
  auto* codes = reinterpret_cast<uint8_t*>(out.codes);
  for (size_t k = 0; k < cols / 256; ++k, row += sizeof(format::BlockQ2_K), codes += 256) {
    const uint8_t* scales = BytesAt(row);
    for (size_t part = 0; part < 4; ++part) {  // 16 bytes hold 4 sub-blocks of 16, two apart
      const auto packed = hn::BitCast(kWords, hn::LoadU(kBytes, BytesAt(row) + 16 + 16 * part));
      const size_t g = 8 * (part / 2) + part % 2;
      StoreTwoBits<0>(packed, scales[g] & 15, codes + 16 * g);
      StoreTwoBits<2>(packed, scales[g + 2] & 15, codes + 16 * g + 32);
      StoreTwoBits<4>(packed, scales[g + 4] & 15, codes + 16 * g + 64);
      StoreTwoBits<6>(packed, scales[g + 6] & 15, codes + 16 * g + 96);
    }
    std::fill_n(out.scales + 8 * k, 8, f16_to_f32(ReadAt<uint16_t>(row + 80)));
    const float dmin = f16_to_f32(ReadAt<uint16_t>(row + 82));
    float mins[16];
    for (size_t half = 0; half < 2; ++half) {
      const uint64_t nibbles = ReadAt<uint64_t>(row + 8 * half) >> 4 & 0x0f0f0f0f0f0f0f0f;
      ScaledBytes(dmin, nibbles, mins + 8 * half);
    }
    for (size_t j = 0; j < 8; ++j) out.min0[8 * k + j] = mins[2 * j], out.min1[8 * k + j] = mins[2 * j + 1];
  }
}

void CodesIq2Xxs(const std::byte* row, size_t cols, const CodeRow& out) {
  const uint64_t* masks = sign_masks().data();
  const uint64_t* grid = format::kIq2XxsGrid.data();
  int8_t* codes = out.codes;
  for (size_t k = 0; k < cols / 256; ++k, row += sizeof(format::BlockIQ2_XXS)) {
    const float d = f16_to_f32(ReadAt<uint16_t>(row));
    for (size_t b = 0; b < 8; ++b, codes += kBlock) {
      const auto group = ReadAt<uint64_t>(row + 2 + 8 * b);
      const auto signs = static_cast<uint32_t>(group >> 32);
      for (size_t octet = 0; octet < 4; ++octet) {
        // Levels are not 0, so that negating a byte, ~level + 1, does not carry into the next one.
        const uint64_t mask = masks[signs >> (7 * octet) & 127];
        const uint64_t levels = (grid[group >> (8 * octet) & 255] ^ mask) + (mask & 0x0101010101010101);
        std::memcpy(codes + 8 * octet, &levels, 8);
      }
      out.scales[8 * k + b] = d * static_cast<float>(2 * (signs >> 28) + 1) * 0.125f;
    }
  }
}

void DecodeCodes(TensorType type, const std::byte* row, size_t cols, const CodeRow& out) {
  switch (type) {
    case TensorType::q8_0:
      return CodesQ8_0(row, cols, out);
    case TensorType::mxfp4:
      return CodesMxfp4(row, cols, out);
    case TensorType::q4_k:
      return CodesQ4_K(row, cols, out);
    case TensorType::q2_k:
      return CodesQ2_K(row, cols, out);
    case TensorType::iq2_xxs:
      return CodesIq2Xxs(row, cols, out);
    default:
      return;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

template <class W>
void Halves(const std::byte* row, size_t cols, float* out) {
  const D d;
  const W* w = reinterpret_cast<const W*>(row);
  for (size_t c = 0; c < cols; c += hn::Lanes(d)) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(hn::Rebind<W, D>(), w + c)), d, out + c);
  }
}

template <bool kMins>
void CodesToFloats(const CodeRow& in, size_t cols, float* out) {
  const D d;
  const hn::Rebind<int32_t, D> di;
  const hn::Rebind<int8_t, D> d8;
  for (size_t c = 0; c < cols; c += 16) {
    const auto scale = hn::Set(d, in.scales[c / kBlock]);
    const float* mins = c % kBlock == 0 ? in.min0 : in.min1;
    const auto minimum = hn::Set(d, kMins ? mins[c / kBlock] : 0.0f);
    for (size_t i = c; i < c + 16; i += hn::Lanes(d)) {
      auto value = hn::Mul(scale, hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, in.codes + i))));
      if constexpr (kMins) value = hn::Sub(value, minimum);
      hn::StoreU(value, d, out + i);
    }
  }
}

void DecodeFloats(TensorType type, const std::byte* row, size_t cols, float* out) {
  if (type == TensorType::f32) return std::memcpy(out, row, cols * sizeof(float)), void();
  if (type == TensorType::f16) return Halves<hwy::float16_t>(row, cols, out);
  if (type == TensorType::bf16) return Halves<hwy::bfloat16_t>(row, cols, out);
  HWY_ALIGN int8_t codes[kChunkCols];
  HWY_ALIGN float scales[kChunkCols / kBlock], min0[kChunkCols / kBlock], min1[kChunkCols / kBlock];
  const CodeRow chunk{codes, scales, min0, min1};
  for (size_t c = 0; c < cols; c += kChunkCols) {
    const size_t count = std::min(kChunkCols, cols - c);
    decode_row_codes(type, row + format::row_bytes(type, c), count, chunk);
    has_minimum(type) ? CodesToFloats<true>(chunk, count, out + c)
                      : CodesToFloats<false>(chunk, count, out + c);
  }
}

bool IsAvx512() {
  return HWY_TARGET <= HWY_AVX3;  // better targets have smaller values; those of other processors are larger
}

}  // namespace ds4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::cpu {

HWY_EXPORT(DecodeCodes);
HWY_EXPORT(DecodeFloats);
HWY_EXPORT(IsAvx512);

bool avx512_chosen() {
  return HWY_DYNAMIC_DISPATCH(IsAvx512)();
}

void decode_row_codes(format::TensorType type, const std::byte* row, size_t cols, const CodeRow& out) {
  if (has_avx512_vnni()) return decode_row_codes_avx512(type, row, cols, out);
  HWY_DYNAMIC_DISPATCH(DecodeCodes)(type, row, cols, out);
}

void decode_row_f32(format::TensorType type, const std::byte* row, size_t cols, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeFloats)(type, row, cols, out);
}

}  // namespace ds4::cpu
#endif
