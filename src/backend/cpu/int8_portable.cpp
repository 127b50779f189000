// Int8 products for every machine, through Highway (AVX2, NEON, ...).
// Layout: weight rows are decoded to int8 codes (weight_tiles.hpp). Few tokens: a row at a time, lanes along
// the columns. More: rows are widened and transposed so that a register holds 2 columns of 4 or 8 rows, and T
// tokens share each load. Preconditions: cols a multiple of 32 (256 for K-quants), activations prepared.
// Cost: codes are widened to 16 bits, where products of pairs are exact in 32 bits. Why: no target has to
// offer an 8-bit dot product, and the order is that of int8_kernels.hpp.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backend/cpu/int8_kernels.hpp"
#include "backend/cpu/weight_tiles.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/int8_portable.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ds4::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kInt8Lanes>;
using Scalar = hn::CappedTag<float, 1>;

const char* TargetName() {
  return hwy::TargetName(HWY_TARGET);
}

float MulAddScalar(float a, float b, float c) {
  const Scalar d;
  return hn::GetLane(hn::MulAdd(hn::Set(d, a), hn::Set(d, b), hn::Set(d, c)));
}

/// Exact sum of the 32 products of one block.
HWY_INLINE int32_t BlockSum(const int8_t* HWY_RESTRICT w, const int8_t* HWY_RESTRICT x) {
  const hn::CappedTag<int16_t, 16> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const hn::RepartitionToWide<decltype(d16)> d32;
  auto even = hn::Zero(d32), odd = hn::Zero(d32);
  for (size_t i = 0; i < kInt8Block; i += hn::Lanes(d16)) {
    const auto a = hn::PromoteTo(d16, hn::LoadU(d8, w + i)), b = hn::PromoteTo(d16, hn::LoadU(d8, x + i));
    even = hn::ReorderWidenMulAccumulate(d32, a, b, even, odd);
  }
  return hn::GetLane(hn::SumOfLanes(d32, hn::Add(even, odd)));
}

struct DecodedRow {
  const int8_t* codes;
  const float* scales;
  const float* min0;  // nullptr: no minimum
  const float* min1;
};

struct TokenRow {
  const int8_t* codes;
  const float* scales;
  const float* sums0;
  const float* sums1;
};

float Dot(const DecodedRow& w, const TokenRow& x, size_t blocks) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  HWY_ALIGN float lanes[kInt8Lanes] = {};
  HWY_ALIGN int32_t sums[kInt8Lanes];
  size_t b = 0;
  for (; b + kInt8Lanes <= blocks; b += kInt8Lanes) {
    for (size_t i = 0; i < kInt8Lanes; ++i) {
      sums[i] = BlockSum(w.codes + (b + i) * kInt8Block, x.codes + (b + i) * kInt8Block);
    }
    for (size_t i = 0; i < kInt8Lanes; i += hn::Lanes(d)) {
      const auto scale = hn::Mul(hn::LoadU(d, w.scales + b + i), hn::LoadU(d, x.scales + b + i));
      auto acc = hn::MulAdd(hn::ConvertTo(d, hn::Load(di, sums + i)), scale, hn::Load(d, lanes + i));
      if (w.min0 != nullptr) {
        acc = hn::NegMulAdd(hn::LoadU(d, w.min0 + b + i), hn::LoadU(d, x.sums0 + b + i), acc);
        acc = hn::NegMulAdd(hn::LoadU(d, w.min1 + b + i), hn::LoadU(d, x.sums1 + b + i), acc);
      }
      hn::Store(acc, d, lanes + i);
    }
  }
  // Only Q8_0 and MXFP4 rows can end within a group of eight; these have no minimum.
  for (size_t i = 0; b < blocks; ++b, ++i) {
    const int32_t sum = BlockSum(w.codes + b * kInt8Block, x.codes + b * kInt8Block);
    lanes[i] = MulAddScalar(static_cast<float>(sum), w.scales[b] * x.scales[b], lanes[i]);
  }
  float sum = lanes[0];
  for (size_t i = 1; i < kInt8Lanes; ++i) sum += lanes[i];
  return sum;
}

bool RowByRow(const Int8Product& p) {
  MatmulScratch& scratch = *p.scratch;
  const size_t blocks = p.cols / kInt8Block, stride = p.x->code_stride / kInt8Block;
  if (!scratch.codes.ensure(p.cols) || !scratch.scales.ensure(blocks) || !scratch.mins.ensure(2 * blocks))
    return false;
  const bool mins = has_minimum(p.type);
  float *min0 = scratch.mins.data(), *min1 = min0 + blocks;
  const DecodedRow w{scratch.codes.data(), scratch.scales.data(), mins ? min0 : nullptr, min1};
  for (size_t row = 0; row < p.row_count; ++row) {
    decode_row_codes(p.type, p.rows + row * p.row_bytes, p.cols,
                     {scratch.codes.data(), scratch.scales.data(), min0, min1});
    for (size_t i = 0; i < p.count; ++i) {
      const size_t token = p.token(i);
      const float* sums = p.x->sums + 2 * token * stride;
      p.out[i * p.out_stride + row] =
          Dot(w, {p.x->codes + token * p.x->code_stride, p.x->scales + token * stride, sums, sums + stride},
              blocks);
    }
  }
  return true;
}

#if HWY_TARGET != HWY_SCALAR

using TileInts = hn::CappedTag<int32_t, 8>;
using TileFloats = hn::RebindToFloat<TileInts>;
constexpr size_t kTileRows = hn::MaxLanes(TileInts());
constexpr size_t kMaxTokens = 6;
constexpr size_t kMinTokensForTiles = 4;  // below, transposing costs more than it saves
constexpr size_t kPairs = kInt8Block / 2;
constexpr size_t kTileBudgetBytes = 256 * 1024;

/// kTileRows decoded rows: codes [block][16 pairs][row][2 columns], the others [block][row].
struct Tile {
  int16_t* codes;
  float* scales;
  float* min0;
  float* min1;
};

void Widen(const int8_t* in, size_t count, int16_t* out) {
  const hn::CappedTag<int16_t, 16> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(hn::Rebind<int8_t, decltype(d)>(), in + i)), d, out + i);
  }
}

/// int8 [kTileRows][cols] to 16 bits [cols / 2][row][2 columns].
void TransposeAndWiden(const int8_t* in, size_t cols, int16_t* out) {
  const hn::FixedTag<uint16_t, 8> d;  // a lane holds two columns
  HWY_ALIGN uint16_t pairs[8 * kTileRows];
  for (size_t c = 0; c < cols; c += 16) {
    hn::Vec<decltype(d)> v[kTileRows], shuffled[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) {
      v[r] = hn::LoadU(d, reinterpret_cast<const uint16_t*>(in + r * cols + c));
    }
    // Each step moves one bit of the row's number from the register's number into the lane's.
    for (size_t step = 1; step < kTileRows; step *= 2) {
      for (size_t i = 0; i < kTileRows / 2; ++i) {
        shuffled[2 * i] = hn::InterleaveLower(d, v[i], v[i + kTileRows / 2]);
        shuffled[2 * i + 1] = hn::InterleaveUpper(d, v[i], v[i + kTileRows / 2]);
      }
      for (size_t i = 0; i < kTileRows; ++i) v[i] = shuffled[i];
    }
    for (size_t i = 0; i < kTileRows; ++i) hn::Store(v[i], d, pairs + 8 * i);
    Widen(reinterpret_cast<const int8_t*>(pairs), 16 * kTileRows, out + c * kTileRows);
  }
}

/// Decodes `rows` <= kTileRows rows; what the others hold does not matter. `row` has room for the
/// codes of a tile and for the scales and minima of one row.
void PackTile(const Int8Product& p, size_t first, size_t rows, const CodeRow& row, const Tile& tile) {
  const size_t blocks = p.cols / kInt8Block;
  for (size_t r = 0; r < rows; ++r) {
    decode_row_codes(p.type, p.rows + (first + r) * p.row_bytes, p.cols,
                     {row.codes + r * p.cols, row.scales, row.min0, row.min1});
    for (size_t b = 0; b < blocks; ++b) tile.scales[b * kTileRows + r] = row.scales[b];
    for (size_t b = 0; has_minimum(p.type) && b < blocks; ++b) {
      tile.min0[b * kTileRows + r] = row.min0[b];
      tile.min1[b * kTileRows + r] = row.min1[b];
    }
  }
  TransposeAndWiden(row.codes, p.cols, tile.codes);
}

/// What a token brings: widened codes, and scales and sums as in TokenRow.
struct WideToken {
  const int16_t* codes;
  const float* scales;
  const float* sums0;
  const float* sums1;
};

/// A tile times T tokens, to out [T][kTileRows].
template <size_t T, bool kMins>
void TileProduct(const Tile& tile, const WideToken* tokens, size_t blocks, float* HWY_RESTRICT out) {
  const TileFloats d;
  const TileInts d32;
  const hn::RepartitionToNarrow<TileInts> d16;
  WideToken x[T];
  for (size_t t = 0; t < T; ++t) x[t] = tokens[t];
  for (size_t t = 0; t < T; ++t) hn::StoreU(hn::Zero(d), d, out + t * kTileRows);
  for (size_t lane = 0; lane < std::min(kInt8Lanes, blocks); ++lane) {
    hn::Vec<TileFloats> acc[T];
    for (size_t t = 0; t < T; ++t) acc[t] = hn::Zero(d);
    for (size_t b = lane; b < blocks; b += kInt8Lanes) {
      hn::Vec<TileInts> sum[T], odd[T];
      HWY_UNROLL(6)
      for (size_t t = 0; t < T; ++t) sum[t] = odd[t] = hn::Zero(d32);
      for (size_t s = 0; s < kPairs; ++s) {
        const auto w = hn::LoadU(d16, tile.codes + (b * kPairs + s) * 2 * kTileRows);
        HWY_UNROLL(6)
        for (size_t t = 0; t < T; ++t) {
          int32_t pair;
          std::memcpy(&pair, x[t].codes + b * kInt8Block + 2 * s, sizeof pair);
          const auto two = hn::BitCast(d16, hn::Set(d32, pair));
          sum[t] = hn::ReorderWidenMulAccumulate(d32, w, two, sum[t], odd[t]);
        }
      }
      const auto scale = hn::LoadU(d, tile.scales + b * kTileRows);
      HWY_UNROLL(6)
      for (size_t t = 0; t < T; ++t) {
        const auto products = hn::ConvertTo(d, hn::RearrangeToOddPlusEven(sum[t], odd[t]));
        acc[t] = hn::MulAdd(products, hn::Mul(scale, hn::Set(d, x[t].scales[b])), acc[t]);
        if constexpr (kMins) {
          acc[t] = hn::NegMulAdd(hn::LoadU(d, tile.min0 + b * kTileRows), hn::Set(d, x[t].sums0[b]), acc[t]);
          acc[t] = hn::NegMulAdd(hn::LoadU(d, tile.min1 + b * kTileRows), hn::Set(d, x[t].sums1[b]), acc[t]);
        }
      }
    }
    for (size_t t = 0; t < T; ++t) {
      hn::StoreU(hn::Add(hn::LoadU(d, out + t * kTileRows), acc[t]), d, out + t * kTileRows);
    }
  }
}

template <bool kMins>
void TileProductOf(size_t count, const Tile& tile, const WideToken* tokens, size_t blocks, float* out) {
  using Function = void (*)(const Tile&, const WideToken*, size_t, float*);
  constexpr Function functions[kMaxTokens] = {TileProduct<1, kMins>, TileProduct<2, kMins>,
                                              TileProduct<3, kMins>, TileProduct<4, kMins>,
                                              TileProduct<5, kMins>, TileProduct<6, kMins>};
  functions[count - 1](tile, tokens, blocks, out);
}

/// Room for `count` tiles, for what PackTile needs besides, and for all tokens.
bool ReserveTiles(const Int8Product& p, size_t count, Tile* tiles, CodeRow& row) {
  const size_t blocks = p.cols / kInt8Block, words = count * blocks * kTileRows;
  MatmulScratch& scratch = *p.scratch;
  if (!scratch.codes.ensure(kTileRows * p.cols) || !scratch.wide_codes.ensure(words * kInt8Block) ||
      !scratch.scales.ensure(words + blocks) || !scratch.mins.ensure(2 * (words + blocks)) ||
      !scratch.wide_activations.ensure(p.count * p.cols)) {
    return false;
  }
  float *scales = scratch.scales.data(), *mins = scratch.mins.data();
  row = {scratch.codes.data(), scales + words, mins + 2 * words, mins + 2 * words + blocks};
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i * blocks * kTileRows;
    tiles[i] = {scratch.wide_codes.data() + at * kInt8Block, scales + at, mins + at, mins + words + at};
  }
  return true;
}

bool ByTiles(const Int8Product& p) {
  constexpr size_t kMaxTiles = 8;
  const size_t blocks = p.cols / kInt8Block, stride = p.x->code_stride / kInt8Block;
  const size_t tile_bytes = p.cols * kTileRows * sizeof(int16_t);
  const size_t max_tiles = std::clamp<size_t>(kTileBudgetBytes / tile_bytes, 1, kMaxTiles);
  const size_t tiles = std::min(max_tiles, (p.row_count + kTileRows - 1) / kTileRows);
  Tile tile[kMaxTiles];
  CodeRow row_codes;
  if (!ReserveTiles(p, tiles, tile, row_codes)) return false;
  int16_t* wide_tokens = p.scratch->wide_activations.data();
  for (size_t i = 0; i < p.count; ++i) {
    Widen(p.x->codes + p.token(i) * p.x->code_stride, p.cols, wide_tokens + i * p.cols);
  }
  const size_t groups = (p.count + kMaxTokens - 1) / kMaxTokens;
  for (size_t row = 0; row < p.row_count; row += tiles * kTileRows) {
    const size_t rows = std::min(tiles * kTileRows, p.row_count - row);
    for (size_t r = 0; r < rows; r += kTileRows) {
      PackTile(p, row + r, std::min(kTileRows, rows - r), row_codes, tile[r / kTileRows]);
    }
    for (size_t group = 0; group < groups; ++group) {
      const size_t first = group * p.count / groups, count = (group + 1) * p.count / groups - first;
      WideToken x[kMaxTokens];
      for (size_t i = 0; i < count; ++i) {
        const size_t token = p.token(first + i);
        const float* sums = p.x->sums + 2 * token * stride;
        x[i] = {wide_tokens + (first + i) * p.cols, p.x->scales + token * stride, sums, sums + stride};
      }
      for (size_t r = 0; r < rows; r += kTileRows) {
        HWY_ALIGN float out[kMaxTokens * kTileRows];
        if (has_minimum(p.type)) {
          TileProductOf<true>(count, tile[r / kTileRows], x, blocks, out);
        } else {
          TileProductOf<false>(count, tile[r / kTileRows], x, blocks, out);
        }
        for (size_t i = 0; i < count; ++i) {
          std::copy_n(out + i * kTileRows, std::min(kTileRows, rows - r),
                      p.out + (first + i) * p.out_stride + row + r);
        }
      }
    }
  }
  return true;
}

#endif  // HWY_TARGET != HWY_SCALAR

bool Product(const Int8Product& p) {
#if HWY_TARGET != HWY_SCALAR
  if (p.count >= kMinTokensForTiles) return ByTiles(p);
#endif
  return RowByRow(p);
}

}  // namespace ds4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::cpu {

HWY_EXPORT(Product);
HWY_EXPORT(TargetName);

bool int8_product_portable(const Int8Product& product) {
  return HWY_DYNAMIC_DISPATCH(Product)(product);
}

const char* portable_target_name() {
  return HWY_DYNAMIC_DISPATCH(TargetName)();
}

}  // namespace ds4::cpu
#endif
