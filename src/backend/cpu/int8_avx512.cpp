// Int8 products for AVX-512 with VNNI.
// Layout: weights are decoded 256 columns at a time (int8_avx512_groups.hpp). One token: a row at a time,
// lanes along the columns, straight from memory. More: 16 rows x 256 columns are transposed so that a
// register holds 4 columns of 16 rows, and T tokens share each load (activations are broadcast by the
// instruction). Preconditions: cols a multiple of 32 (256 for K-quants), activations prepared. Cost: one
// vpdpbusd for 64 products. It multiplies unsigned by signed bytes: weights are offset by 128 and the
// activations bring -128 * (their sum) along, so sums are exact.
// Why: one token runs at the speed of memory; 16 x 8 accumulators hide the latency of the dot product.
#include "backend/cpu/int8_kernels.hpp"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "format/fp4_e2m1.hpp"
#include "format/iq2_xxs_tables.hpp"
#include "format/mxfp4.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored \
    "-Wuninitialized"  // GCC 12's own header initialises "undefined" registers with themselves
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

HWY_PUSH_ATTRIBUTES(
    "avx,avx2,fma,f16c,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,avx512vbmi,gfni")

#include "backend/cpu/int8_avx512_groups.hpp"

namespace ds4::cpu {
namespace {

constexpr size_t kTileRows = 16;
constexpr size_t kMaxTokens = 8;
constexpr size_t kGroupCols = 256;
constexpr size_t kTileBudgetBytes = 384 * 1024;  // decoded weights, to stay in a level-2 cache of 1 MiB

constexpr size_t group_bytes(TensorType type) {
  switch (type) {
    case TensorType::q8_0:
      return 8 * 34;
    case TensorType::mxfp4:
      return 8 * 17;
    case TensorType::q4_k:
      return 144;
    case TensorType::q2_k:
      return 84;
    default:
      return 66;
  }
}

/// The group 4096 bytes on: decoding keeps the core too busy for its own look-ahead to keep up with memory.
template <TensorType kType>
HWY_INLINE void prefetch_ahead(const std::byte* w) {
  _mm_prefetch(reinterpret_cast<const char*>(w + 4096), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(w + 4096 + 64), _MM_HINT_T0);
  if constexpr (group_bytes(kType) > 128) {
    _mm_prefetch(reinterpret_cast<const char*>(w + 4096 + 128), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(w + 4096 + 192), _MM_HINT_T0);
  }
}

/// The activations of one group of 256 columns.
struct TokenGroup {
  const int8_t* codes;
  const float* scales;
  const int32_t* offsets;
  const float* sums0;
  const float* sums1;
};

/// Adds the eight blocks of a group to the eight lanes.
template <bool kMins>
HWY_INLINE __m256 add_group(const Group& g, const TokenGroup& x, __m256 lanes) {
  const __m512i flip = _mm512_set1_epi8(-128);
  __m512i d[4];
  for (int k = 0; k < 4; ++k) {
    d[k] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_xor_si512(g.codes[k], flip),
                               _mm512_loadu_si512(x.codes + 64 * k));
  }
  // Lane sums by transposing adds: quarter q of `quarters` holds parts of blocks q / 2, q / 2 + 2, + 4, + 6.
  const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(d[0], d[1]), _mm512_unpackhi_epi32(d[0], d[1]));
  const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(d[2], d[3]), _mm512_unpackhi_epi32(d[2], d[3]));
  const __m512i quarters = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m256i low = _mm512_castsi512_si256(quarters), high = _mm512_extracti64x4_epi64(quarters, 1);
  const __m256i blocks = _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                          _mm256_permute2x128_si256(low, high, 0x31));
  const __m256i ordered = _mm256_permutevar8x32_epi32(blocks, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  const __m256i offsets = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.offsets));
  const __m256 sums = _mm256_cvtepi32_ps(_mm256_add_epi32(ordered, offsets));
  lanes = _mm256_fmadd_ps(sums, _mm256_mul_ps(g.scales, _mm256_loadu_ps(x.scales)), lanes);
  if constexpr (kMins) {
    lanes = _mm256_fnmadd_ps(g.min0, _mm256_loadu_ps(x.sums0), lanes);
    lanes = _mm256_fnmadd_ps(g.min1, _mm256_loadu_ps(x.sums1), lanes);
  }
  return lanes;
}

HWY_INLINE float sum_lanes(__m256 lanes) {
  alignas(32) float values[kInt8Lanes];
  _mm256_store_ps(values, lanes);
  float sum = values[0];
  for (size_t lane = 1; lane < kInt8Lanes; ++lane) sum += values[lane];
  return sum;
}

/// One token. The last blocks of a row that do not fill a group are multiplied with a zero-filled copy.
template <TensorType kType>
void single_token(const Int8Product& p) {
  constexpr bool kMins = has_minimum(kType);
  const Activations::View& view = *p.x;
  const size_t token = p.token(0), stride = view.code_stride / kInt8Block;
  const TokenGroup x{view.codes + token * view.code_stride, view.scales + token * stride,
                     view.offsets + token * stride, view.sums + 2 * token * stride,
                     view.sums + (2 * token + 1) * stride};
  const size_t groups = p.cols / kGroupCols, rest = p.cols % kGroupCols;
  alignas(64) int8_t rest_codes[kGroupCols] = {};
  alignas(32) float rest_scales[kInt8Lanes] = {};
  alignas(32) int32_t rest_offsets[kInt8Lanes] = {};
  if (rest != 0) {
    std::memcpy(rest_codes, x.codes + groups * kGroupCols, rest);
    std::memcpy(rest_scales, x.scales + groups * kInt8Lanes, rest / kInt8Block * 4);
    std::memcpy(rest_offsets, x.offsets + groups * kInt8Lanes, rest / kInt8Block * 4);
  }
  const TokenGroup rest_group{rest_codes, rest_scales, rest_offsets, nullptr, nullptr};
  for (size_t row = 0; row < p.row_count; ++row) {
    const std::byte* w = p.rows + row * p.row_bytes;
    __m256 lanes = _mm256_setzero_ps();
    for (size_t g = 0; g < groups; ++g, w += group_bytes(kType)) {
      prefetch_ahead<kType>(w);
      const size_t b = g * kInt8Lanes;
      lanes = add_group<kMins>(
          decode_group<kType>(w),
          {x.codes + g * kGroupCols, x.scales + b, x.offsets + b, x.sums0 + b, x.sums1 + b}, lanes);
    }
    if constexpr (kType == TensorType::q8_0 || kType == TensorType::mxfp4) {
      if (rest != 0) {
        lanes = add_group<false>(decode_partial_group<kType>(w, rest / kInt8Block * group_bytes(kType) / 8),
                                 rest_group, lanes);
      }
    }
    p.out[row] = sum_lanes(lanes);
  }
}

/// 16 x 16 words, rows `stride` bytes apart, transposed to 16 consecutive registers and xored with `flip`.
HWY_INLINE void transpose_16x16(const void* in, size_t stride, void* out, __m512i flip) {
  __m512i r[16], s[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(static_cast<const std::byte*>(in) + i * stride);
  for (int i = 0; i < 16; i += 2) {
    s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
  }
  // r[4 i + c] quarter q: column 4 q + c of rows 4 i .. 4 i + 3.
  for (int c = 0; c < 4; ++c) {
    s[c] = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88);
    s[c + 4] = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd);
    s[c + 8] = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
    s[c + 12] = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
  }
  __m512i* to = static_cast<__m512i*>(out);
  for (int c = 0; c < 4; ++c) {
    _mm512_store_si512(to + c, _mm512_xor_si512(_mm512_shuffle_i32x4(s[c], s[c + 8], 0x88), flip));
    _mm512_store_si512(to + 8 + c, _mm512_xor_si512(_mm512_shuffle_i32x4(s[c], s[c + 8], 0xdd), flip));
    _mm512_store_si512(to + 4 + c, _mm512_xor_si512(_mm512_shuffle_i32x4(s[c + 4], s[c + 12], 0x88), flip));
    _mm512_store_si512(to + 12 + c, _mm512_xor_si512(_mm512_shuffle_i32x4(s[c + 4], s[c + 12], 0xdd), flip));
  }
}

/// 16 decoded rows: codes [block][8][16 rows][4 columns] offset by 128, scales and minima [block][16 rows].
struct Tile {
  int8_t* codes;
  float* scales;
  float* min0;
  float* min1;
};

/// Decodes `rows` <= 16 rows; the others are zero.
template <TensorType kType>
void pack_tile(const Int8Product& p, size_t row_begin, size_t rows, const Tile& tile) {
  constexpr bool kMins = has_minimum(kType);
  const size_t groups = (p.cols + kGroupCols - 1) / kGroupCols;
  alignas(64) int8_t codes[kTileRows][kGroupCols] = {};
  alignas(64) float scales[kTileRows][16] = {};  // 8 scales, 8 first minima
  alignas(64) float min1[kTileRows][16] = {};    // 8 second minima
  alignas(64) float transposed[16][kTileRows];
  for (size_t g = 0; g < groups; ++g) {
    const size_t cols = std::min(kGroupCols, p.cols - g * kGroupCols);
    const size_t at = g * group_bytes(kType);
    for (size_t r = 0; r < rows; ++r) {
      const std::byte* w = p.rows + (row_begin + r) * p.row_bytes + at;
      const Group group = cols == kGroupCols
                              ? decode_group<kType>(w)
                              : decode_partial_group<kType>(w, cols / kInt8Block * group_bytes(kType) / 8);
      for (int k = 0; k < 4; ++k) _mm512_store_si512(codes[r] + 64 * k, group.codes[k]);
      _mm256_store_ps(scales[r], group.scales);
      if constexpr (kMins) {
        _mm256_store_ps(scales[r] + 8, group.min0);
        _mm256_store_ps(min1[r], group.min1);
      }
    }
    for (size_t k = 0; k < 4; ++k) {
      transpose_16x16(codes[0] + 64 * k, kGroupCols, tile.codes + (g * 4 + k) * 1024, _mm512_set1_epi8(-128));
    }
    const size_t b = g * kInt8Lanes * kTileRows;
    transpose_16x16(scales, sizeof scales[0], transposed, _mm512_setzero_si512());
    std::memcpy(tile.scales + b, transposed, sizeof transposed / 2);
    if constexpr (kMins) {
      std::memcpy(tile.min0 + b, transposed[8], sizeof transposed / 2);
      transpose_16x16(min1, sizeof min1[0], transposed, _mm512_setzero_si512());
      std::memcpy(tile.min1 + b, transposed, sizeof transposed / 2);
    }
  }
}

/// Scale, offset and sums of T tokens, [block][4 or 2][T]: what the kernel broadcasts beside the codes.
template <bool kMins>
void pack_activations(const Int8Product& p, size_t first, size_t tokens, float* out) {
  const size_t blocks = p.cols / kInt8Block, stride = p.x->code_stride / kInt8Block;
  constexpr size_t kinds = kMins ? 4 : 2;
  for (size_t t = 0; t < tokens; ++t) {
    const size_t token = p.token(first + t);
    const float* scales = p.x->scales + token * stride;
    const int32_t* offsets = p.x->offsets + token * stride;
    const float* sums = p.x->sums + 2 * token * stride;
    float* to = out + t;
    for (size_t b = 0; b < blocks; ++b, to += kinds * tokens) {
      to[0] = scales[b];
      std::memcpy(to + tokens, offsets + b, 4);
      if constexpr (kMins) {
        to[2 * tokens] = sums[b];
        to[3 * tokens] = sums[stride + b];
      }
    }
  }
}

/// 16 rows x T tokens. `meta` as pack_activations makes it.
template <size_t T, bool kMins>
void tile_product(const Tile& tile, const int8_t* const* codes, const float* meta, size_t blocks, float* out,
                  size_t out_stride, __mmask16 rows) {
  constexpr size_t kMeta = (kMins ? 4 : 2) * T;
  const int8_t* x[T];
  for (size_t t = 0; t < T; ++t) x[t] = codes[t];
  __m512 total[T];
  for (size_t t = 0; t < T; ++t) total[t] = _mm512_setzero_ps();
  for (size_t lane = 0; lane < std::min(kInt8Lanes, blocks); ++lane) {
    __m512 acc[T];
    for (size_t t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
    for (size_t b = lane; b < blocks; b += kInt8Lanes) {
      const float* m = meta + b * kMeta;
      const int8_t* w = tile.codes + b * 512;
      __m512i sum[T];
#pragma GCC unroll 8
      for (size_t t = 0; t < T; ++t) {
        int32_t offset;
        std::memcpy(&offset, m + T + t, 4);
        sum[t] = _mm512_set1_epi32(offset);
      }
#pragma GCC unroll 8
      for (size_t s = 0; s < 8; ++s) {
        const __m512i four = _mm512_load_si512(w + 64 * s);
#pragma GCC unroll 8
        for (size_t t = 0; t < T; ++t) {
          int32_t word;
          std::memcpy(&word, x[t] + b * kInt8Block + 4 * s, 4);
          sum[t] = _mm512_dpbusd_epi32(sum[t], four, _mm512_set1_epi32(word));
        }
      }
      const __m512 scale = _mm512_load_ps(tile.scales + b * kTileRows);
#pragma GCC unroll 8
      for (size_t t = 0; t < T; ++t) {
        acc[t] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]), _mm512_mul_ps(scale, _mm512_set1_ps(m[t])), acc[t]);
      }
      if constexpr (kMins) {
        const __m512 first = _mm512_load_ps(tile.min0 + b * kTileRows);
        const __m512 second = _mm512_load_ps(tile.min1 + b * kTileRows);
#pragma GCC unroll 8
        for (size_t t = 0; t < T; ++t) {
          acc[t] = _mm512_fnmadd_ps(first, _mm512_set1_ps(m[2 * T + t]), acc[t]);
          acc[t] = _mm512_fnmadd_ps(second, _mm512_set1_ps(m[3 * T + t]), acc[t]);
        }
      }
    }
    for (size_t t = 0; t < T; ++t) total[t] = _mm512_add_ps(total[t], acc[t]);
  }
  for (size_t t = 0; t < T; ++t) _mm512_mask_storeu_ps(out + t * out_stride, rows, total[t]);
}

using TileProduct = void (*)(const Tile&, const int8_t* const*, const float*, size_t, float*, size_t,
                             __mmask16);

template <bool kMins>
constexpr TileProduct kTileProducts[kMaxTokens] = {
    tile_product<1, kMins>, tile_product<2, kMins>, tile_product<3, kMins>, tile_product<4, kMins>,
    tile_product<5, kMins>, tile_product<6, kMins>, tile_product<7, kMins>, tile_product<8, kMins>};

template <TensorType kType>
bool many_tokens(const Int8Product& p) {
  constexpr bool kMins = has_minimum(kType);
  constexpr size_t kinds = kMins ? 4 : 2;
  const size_t blocks = p.cols / kInt8Block;
  const size_t padded_blocks = (p.cols + kGroupCols - 1) / kGroupCols * kInt8Lanes;
  const size_t tile_bytes = padded_blocks * 512, tile_words = padded_blocks * kTileRows;
  const size_t max_tiles = std::max<size_t>(1, kTileBudgetBytes / tile_bytes);
  const size_t tiles = std::min(max_tiles, (p.row_count + kTileRows - 1) / kTileRows);
  MatmulScratch& scratch = *p.scratch;
  if (!scratch.codes.ensure(tiles * tile_bytes) || !scratch.scales.ensure(tiles * tile_words) ||
      !scratch.activations.ensure(p.count * blocks * kinds) ||
      (kMins && !scratch.mins.ensure(2 * tiles * tile_words))) {
    return false;
  }
  // Groups of nearly equal size, at most kMaxTokens.
  const size_t token_groups = (p.count + kMaxTokens - 1) / kMaxTokens;
  float* meta = scratch.activations.data();
  for (size_t group = 0; group < token_groups; ++group) {
    const size_t first = group * p.count / token_groups, end = (group + 1) * p.count / token_groups;
    pack_activations<kMins>(p, first, end - first, meta + first * blocks * kinds);
  }
  for (size_t row = 0; row < p.row_count; row += tiles * kTileRows) {
    const size_t rows = std::min(tiles * kTileRows, p.row_count - row);
    const size_t used = (rows + kTileRows - 1) / kTileRows;
    Tile tile[kTileBudgetBytes / 4096 + 1];
    for (size_t i = 0; i < used; ++i) {
      tile[i] = {scratch.codes.data() + i * tile_bytes, scratch.scales.data() + i * tile_words, nullptr,
                 nullptr};
      if constexpr (kMins) {
        tile[i].min0 = scratch.mins.data() + 2 * i * tile_words;
        tile[i].min1 = tile[i].min0 + tile_words;
      }
      pack_tile<kType>(p, row + i * kTileRows, std::min(kTileRows, rows - i * kTileRows), tile[i]);
    }
    for (size_t group = 0; group < token_groups; ++group) {
      const size_t first = group * p.count / token_groups, end = (group + 1) * p.count / token_groups;
      const int8_t* codes[kMaxTokens];
      for (size_t t = first; t < end; ++t) codes[t - first] = p.x->codes + p.token(t) * p.x->code_stride;
      for (size_t i = 0; i < used; ++i) {
        const size_t left = rows - i * kTileRows;
        const auto mask = static_cast<__mmask16>(left >= kTileRows ? 0xffff : (1u << left) - 1);
        kTileProducts<kMins>[end - first - 1](tile[i], codes, meta + first * blocks * kinds, blocks,
                                              p.out + first * p.out_stride + row + i * kTileRows,
                                              p.out_stride, mask);
      }
    }
  }
  return true;
}

template <TensorType kType>
bool product_of_type(const Int8Product& p) {
  if (p.count > 1) return many_tokens<kType>(p);
  single_token<kType>(p);
  return true;
}

template <TensorType kType>
void decode_row(const std::byte* row, size_t cols, const CodeRow& out) {
  for (size_t c = 0; c < cols; c += kGroupCols, row += group_bytes(kType)) {
    const size_t b = c / kInt8Block, blocks = std::min(kInt8Lanes, cols / kInt8Block - b);
    if constexpr (kType == TensorType::q8_0 || kType == TensorType::mxfp4) {
      if (blocks < kInt8Lanes) {
        alignas(64) int8_t codes[kGroupCols];
        alignas(32) float scales[kInt8Lanes];
        const Group g = decode_partial_group<kType>(row, blocks * group_bytes(kType) / kInt8Lanes);
        for (int k = 0; k < 4; ++k) _mm512_store_si512(codes + 64 * k, g.codes[k]);
        _mm256_store_ps(scales, g.scales);
        std::memcpy(out.codes + c, codes, blocks * kInt8Block);
        std::memcpy(out.scales + b, scales, blocks * sizeof(float));
        return;
      }
    }
    prefetch_ahead<kType>(row);
    const Group g = decode_group<kType>(row);
    for (int k = 0; k < 4; ++k) _mm512_storeu_si512(out.codes + c + 64 * k, g.codes[k]);
    _mm256_storeu_ps(out.scales + b, g.scales);
    if constexpr (has_minimum(kType)) {
      _mm256_storeu_ps(out.min0 + b, g.min0);
      _mm256_storeu_ps(out.min1 + b, g.min1);
    }
  }
}

}  // namespace

void decode_row_codes_avx512(TensorType type, const std::byte* row, size_t cols, const CodeRow& out) {
  switch (type) {
    case TensorType::q8_0:
      return decode_row<TensorType::q8_0>(row, cols, out);
    case TensorType::mxfp4:
      return decode_row<TensorType::mxfp4>(row, cols, out);
    case TensorType::q4_k:
      return decode_row<TensorType::q4_k>(row, cols, out);
    case TensorType::q2_k:
      return decode_row<TensorType::q2_k>(row, cols, out);
    case TensorType::iq2_xxs:
      return decode_row<TensorType::iq2_xxs>(row, cols, out);
    default:
      return;
  }
}

bool int8_product_avx512(const Int8Product& p) {
  switch (p.type) {
    case TensorType::q8_0:
      return product_of_type<TensorType::q8_0>(p);
    case TensorType::mxfp4:
      return product_of_type<TensorType::mxfp4>(p);
    case TensorType::q4_k:
      return product_of_type<TensorType::q4_k>(p);
    case TensorType::q2_k:
      return product_of_type<TensorType::q2_k>(p);
    case TensorType::iq2_xxs:
      return product_of_type<TensorType::iq2_xxs>(p);
    default:
      return false;
  }
}

}  // namespace ds4::cpu

HWY_POP_ATTRIBUTES

namespace ds4::cpu {

bool has_avx512_vnni() {
  static const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx512f") &&
                                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni") &&
                                __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni");
  return supported && avx512_chosen();
}

}  // namespace ds4::cpu

#else

namespace ds4::cpu {

bool has_avx512_vnni() {
  return false;
}
bool int8_product_avx512(const Int8Product&) {
  return false;
}
void decode_row_codes_avx512(format::TensorType, const std::byte*, size_t, const CodeRow&) {}

}  // namespace ds4::cpu

#endif
