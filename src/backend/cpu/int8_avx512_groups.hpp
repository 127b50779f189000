// Decoders for AVX-512: 256 columns of a weight row to four registers of int8 codes, eight scales, minima.
// Included by int8_avx512.cpp only, inside its target attributes.
#pragma once

namespace ds4::cpu {
namespace {

using format::TensorType;

/// 256 columns (8 blocks of 32). The value is scale * code - minimum; min0 is for the first 16 columns of a
/// block.
struct Group {
  __m512i codes[4];
  __m256 scales;
  __m256 min0, min1;
};

HWY_INLINE float half_at(const std::byte* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  return _cvtsh_ss(half);
}

HWY_INLINE uint32_t word_at(const std::byte* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

HWY_INLINE __m512i two_halves(const std::byte* low, const std::byte* high) {
  const __m256i l = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
  return _mm512_inserti64x4(_mm512_castsi256_si512(l),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)), 1);
}

HWY_INLINE __m512i both_halves(const std::byte* bytes) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
}

template <TensorType kType>
Group decode_group(const std::byte* p);

template <>
HWY_INLINE Group decode_group<TensorType::q8_0>(const std::byte* p) {
  Group g;
  for (int k = 0; k < 4; ++k) g.codes[k] = two_halves(p + 68 * k + 2, p + 68 * k + 36);
  const __m256i at = _mm256_setr_epi32(0, 34, 68, 102, 136, 170, 204, 238);
  const __m256i halves = _mm256_i32gather_epi32(reinterpret_cast<const int*>(p), at, 1);
  g.scales = _mm256_cvtph_ps(_mm256_cvtepi32_epi16(halves));
  return g;
}

template <>
HWY_INLINE Group decode_group<TensorType::mxfp4>(const std::byte* p) {
  Group g;
  const __m512i shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(format::kE2m1Doubled.data())));
  for (int k = 0; k < 4; ++k) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 34 * k + 1));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 34 * k + 18));
    const __m512i bytes = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(low), 0xff00, high);
    const __m512i codes = _mm512_and_si512(_mm512_srlv_epi64(bytes, shift), _mm512_set1_epi8(15));
    g.codes[k] = _mm512_shuffle_epi8(values, codes);
  }
  const __m256i at = _mm256_setr_epi32(0, 17, 34, 51, 68, 85, 102, 119);
  const __m256i e = _mm256_and_si256(_mm256_i32gather_epi32(reinterpret_cast<const int*>(p), at, 1),
                                     _mm256_set1_epi32(255));
  // 2^(e - 128): subnormal for e < 2, NaN for 255.
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
  __m256i bits = _mm256_mask_mov_epi32(normal, _mm256_cmplt_epi32_mask(e, _mm256_set1_epi32(2)), subnormal);
  bits = _mm256_mask_mov_epi32(bits, _mm256_cmpeq_epi32_mask(e, _mm256_set1_epi32(255)),
                               _mm256_set1_epi32(0x7fc00000));
  g.scales = _mm256_castsi256_ps(bits);
  return g;
}

HWY_INLINE __m256 bytes_to_floats(uint32_t low, uint32_t high) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(uint64_t{high} << 32 | low))));
}

template <>
HWY_INLINE Group decode_group<TensorType::q4_k>(const std::byte* p) {
  Group g;
  const __m512i shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
  for (int k = 0; k < 4; ++k) {
    g.codes[k] =
        _mm512_and_si512(_mm512_srlv_epi64(both_halves(p + 16 + 32 * k), shift), _mm512_set1_epi8(15));
  }
  const uint32_t a = word_at(p + 4), b = word_at(p + 8), c = word_at(p + 12);
  const __m256 scales = bytes_to_floats(a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030));
  const __m256 mins = bytes_to_floats(b & 0x3f3f3f3f, (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030));
  g.scales = _mm256_mul_ps(_mm256_set1_ps(half_at(p)), scales);
  g.min0 = g.min1 = _mm256_mul_ps(_mm256_set1_ps(half_at(p + 2)), mins);
  return g;
}

template <>
HWY_INLINE Group decode_group<TensorType::q2_k>(const std::byte* p) {
  Group g;
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m512i scales = _mm512_broadcast_i32x4(_mm_and_si128(packed, _mm_set1_epi8(15)));
  // 128-bit lane l of register k holds sub-block 4 k + l.
  __m512i spread = _mm512_setr_epi64(0, 0, 0x0101010101010101, 0x0101010101010101, 0x0202020202020202,
                                     0x0202020202020202, 0x0303030303030303, 0x0303030303030303);
  for (int k = 0; k < 4; ++k) {
    const int64_t s = 4 * (k % 2);
    const __m512i shift = _mm512_setr_epi64(s, s, s, s, s + 2, s + 2, s + 2, s + 2);
    const __m512i q = _mm512_srlv_epi64(both_halves(p + 16 + 32 * (k / 2)), shift);
    const __m512i scale = _mm512_shuffle_epi8(scales, spread);
    const __m512i low = _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(q, _mm512_set1_epi8(1)), scale);
    g.codes[k] = _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(q, _mm512_set1_epi8(2)), low,
                                      _mm512_add_epi8(scale, scale));
    spread = _mm512_add_epi8(spread, _mm512_set1_epi8(4));
  }
  g.scales = _mm256_set1_ps(half_at(p + 80));
  const __m128i mins = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
  const __m256 dmin = _mm256_set1_ps(half_at(p + 82));
  const __m256i first = _mm256_cvtepu16_epi32(_mm_and_si128(mins, _mm_set1_epi16(255)));
  const __m256i second = _mm256_cvtepu16_epi32(_mm_srli_epi16(mins, 8));
  g.min0 = _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(first));
  g.min1 = _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(second));
  return g;
}

/// The grid with two bits for each level (0, 1, 2 for 8, 25, 43): 256 entries of 16 bits, eight registers.
struct alignas(64) GridCodes {
  uint16_t entries[256];

  GridCodes() {
    for (size_t i = 0; i < 256; ++i) {
      uint16_t entry = 0;
      for (size_t j = 0; j < 8; ++j) {
        const uint64_t level = format::kIq2XxsGrid[i] >> (8 * j) & 255;
        entry = static_cast<uint16_t>(entry | (level == 8 ? 0 : level == 25 ? 1 : 2) << (2 * j));
      }
      entries[i] = entry;
    }
  }
};

const GridCodes& grid_codes() {
  static const GridCodes codes;
  return codes;
}

HWY_INLINE Group decode_iq2_xxs_group(const std::byte* p, const uint16_t* grid) {
  Group g;
  const __m512i payload = _mm512_loadu_si512(p + 2);
  const __m512i index = _mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(payload));
  __m512i quarter[4];
  for (int i = 0; i < 4; ++i) {
    quarter[i] = _mm512_permutex2var_epi16(_mm512_load_si512(grid + 64 * i), index,
                                           _mm512_load_si512(grid + 64 * i + 32));
  }
  const __mmask32 bit6 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
  const __mmask32 bit7 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
  const __m512i entries = _mm512_mask_blend_epi16(bit7, _mm512_mask_blend_epi16(bit6, quarter[0], quarter[1]),
                                                  _mm512_mask_blend_epi16(bit6, quarter[2], quarter[3]));
  // Sign indices: seven bits each from bit 32 of every group, then bit 7 = their parity by a matrix over
  // GF(2).
  const __m512i seven_bits = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x352e2720), payload);
  const __m256i indices = _mm256_and_si256(_mm512_cvtepi64_epi32(seven_bits), _mm256_set1_epi8(127));
  const __m256i signs = _mm256_gf2p8affine_epi64_epi8(indices, _mm256_set1_epi64x(0x010204081020407f), 0);
  const __m512i levels =
      _mm512_broadcast_i32x4(_mm_setr_epi8(8, 25, 43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m512i pairs = _mm512_set1_epi64(0x0e0c0a0806040200);
  const __m128i parts[4] = {_mm512_extracti32x4_epi32(entries, 0), _mm512_extracti32x4_epi32(entries, 1),
                            _mm512_extracti32x4_epi32(entries, 2), _mm512_extracti32x4_epi32(entries, 3)};
  const uint64_t masks[4] = {static_cast<uint64_t>(_mm256_extract_epi64(signs, 0)),
                             static_cast<uint64_t>(_mm256_extract_epi64(signs, 1)),
                             static_cast<uint64_t>(_mm256_extract_epi64(signs, 2)),
                             static_cast<uint64_t>(_mm256_extract_epi64(signs, 3))};
  for (int k = 0; k < 4; ++k) {
    const __m512i two_bits = _mm512_and_si512(
        _mm512_multishift_epi64_epi8(pairs, _mm512_cvtepu16_epi64(parts[k])), _mm512_set1_epi8(3));
    const __m512i level = _mm512_shuffle_epi8(levels, two_bits);
    g.codes[k] = _mm512_mask_sub_epi8(level, _cvtu64_mask64(masks[k]), _mm512_setzero_si512(), level);
  }
  const __m256i s = _mm512_cvtepi64_epi32(_mm512_srli_epi64(payload, 60));
  const __m256 odd = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(s, s), _mm256_set1_epi32(1)));
  g.scales = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(half_at(p)), odd), _mm256_set1_ps(0.125f));
  return g;
}

template <>
HWY_INLINE Group decode_group<TensorType::iq2_xxs>(const std::byte* p) {
  return decode_iq2_xxs_group(p, grid_codes().entries);
}

/// A group of fewer than eight blocks; the rest is zero. Reads nothing beyond the last block.
template <TensorType kType>
HWY_INLINE Group decode_partial_group(const std::byte* p, size_t bytes) {
  alignas(64) std::byte copy[320] = {};
  std::memcpy(copy, p, bytes);
  Group g = decode_group<kType>(copy);
  if constexpr (kType == TensorType::mxfp4) {  // an exponent of 0 is not a scale of 0
    const auto blocks = static_cast<unsigned>(bytes / sizeof(format::BlockMXFP4));
    g.scales = _mm256_maskz_mov_ps(static_cast<__mmask8>((1u << blocks) - 1), g.scales);
  }
  return g;
}

}  // namespace
}  // namespace ds4::cpu
