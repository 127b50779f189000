// Products with F32 activations, through Highway.
// Layout: one token reads F32, F16 and BF16 rows where they lie. Else a tile of rows is decoded to F32, in
// panels of 512 columns (F32 rows stay where they lie), and accumulators wait in memory between panels: with
// few tokens a panel is decoded just before its use, with many the whole tile is, once for all tokens.
// Preconditions: cols a multiple of 32 (256 for K-quants); rows of F16, BF16 and F32 aligned to their
// element. Cost: one fma for 16 products; R rows x T tokens of accumulators load R + T registers for R * T
// products. Why: 4 x 6 accumulators fill the registers of AVX-512, 2 x 3 those of AVX2; the panels of T
// tokens stay in the level-1 cache while a tile passes by from level 2.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backend/cpu/f32_kernels.hpp"
#include "backend/cpu/int8_kernels.hpp"
#include "backend/cpu/weight_tiles.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul_f32.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ds4::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using format::TensorType;

constexpr size_t kLanes = 16;
using D = hn::CappedTag<float, kLanes>;
constexpr size_t kRegisterLanes = hn::MaxLanes(D());
constexpr size_t kRegisters = kLanes / kRegisterLanes;  // for one row and token
constexpr size_t kTileRows = kRegisterLanes == kLanes ? 4 : 2;
constexpr size_t kTileTokens = kRegisterLanes == kLanes ? 6 : 3;
constexpr size_t kCodeRows = 4;  // decoded to codes at a time
constexpr size_t kPanelCols = 512;
constexpr size_t kBudgetBytes = 384 * 1024;  // decoded rows for many tokens, to stay in a level-2 cache
constexpr size_t kMaxRows = 64;              // decoded at a time
constexpr size_t kMaxRowsPanel = 8;          // the same where a panel is used at once

HWY_INLINE auto LoadWeights(const float* p) {
  return hn::LoadU(D(), p);
}
HWY_INLINE auto LoadWeights(const hwy::float16_t* p) {
  return hn::PromoteTo(D(), hn::LoadU(hn::Rebind<hwy::float16_t, D>(), p));
}
HWY_INLINE auto LoadWeights(const hwy::bfloat16_t* p) {
  return hn::PromoteTo(D(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, D>(), p));
}

/// Folds 16 lanes in halves.
HWY_INLINE float SumLanes(const float* sums) {
#if HWY_TARGET == HWY_SCALAR
  float lanes[kLanes];
  std::memcpy(lanes, sums, sizeof lanes);
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
#else
  const hn::FixedTag<float, 4> d;
  const auto eight0 = hn::Add(hn::LoadU(d, sums), hn::LoadU(d, sums + 8));
  const auto eight1 = hn::Add(hn::LoadU(d, sums + 4), hn::LoadU(d, sums + 12));
  const auto four = hn::Add(eight0, eight1);
  const auto two = hn::Add(four, hn::Shuffle1032(four));
  return hn::GetLane(hn::Add(two, hn::Shuffle2301(two)));
#endif
}

/// R rows, `stride` elements apart, times T tokens, added to sums [R][T][16 lanes].
template <size_t R, size_t T, class W>
HWY_INLINE void Tile(const W* HWY_RESTRICT w, size_t stride, const float* const* tokens, size_t cols,
                     float* HWY_RESTRICT sums) {
  const D d;
  const float* x[T];
  for (size_t t = 0; t < T; ++t) x[t] = tokens[t];
  hn::Vec<D> acc[R * T * kRegisters];
  HWY_UNROLL(24)
  for (size_t i = 0; i < R * T * kRegisters; ++i) acc[i] = hn::LoadU(d, sums + i * kRegisterLanes);
  for (size_t c = 0; c < cols; c += kLanes) {
    HWY_UNROLL(4)
    for (size_t k = 0; k < kRegisters; ++k) {
      const size_t at = c + k * kRegisterLanes;
      hn::Vec<D> rows[R];
      HWY_UNROLL(4)
      for (size_t r = 0; r < R; ++r) rows[r] = LoadWeights(w + r * stride + at);
      HWY_UNROLL(6)
      for (size_t t = 0; t < T; ++t) {
        const auto activations = hn::LoadU(d, x[t] + at);
        HWY_UNROLL(4)
        for (size_t r = 0; r < R; ++r) {
          auto& a = acc[(r * T + t) * kRegisters + k];
          a = hn::MulAdd(rows[r], activations, a);
        }
      }
    }
  }
  HWY_UNROLL(24)
  for (size_t i = 0; i < R * T * kRegisters; ++i) hn::StoreU(acc[i], d, sums + i * kRegisterLanes);
}

/// All of `rows` times T tokens, added to sums [rows][T][16 lanes].
template <size_t T, class W>
void Rows(const W* w, size_t stride, size_t rows, const float* const* tokens, size_t cols, float* sums) {
  size_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    Tile<kTileRows, T>(w + r * stride, stride, tokens, cols, sums + r * T * kLanes);
  }
  for (; r < rows; ++r) Tile<1, T>(w + r * stride, stride, tokens, cols, sums + r * T * kLanes);
}

void RowsOf(size_t count, const float* w, size_t stride, size_t rows, const float* const* tokens, size_t cols,
            float* sums) {
  switch (count) {
    case 1:
      return Rows<1>(w, stride, rows, tokens, cols, sums);
    case 2:
      return Rows<2>(w, stride, rows, tokens, cols, sums);
    case 3:
      return Rows<3>(w, stride, rows, tokens, cols, sums);
#if HWY_CAP_GE512
    case 4:
      return Rows<4>(w, stride, rows, tokens, cols, sums);
    case 5:
      return Rows<5>(w, stride, rows, tokens, cols, sums);
    default:
      return Rows<6>(w, stride, rows, tokens, cols, sums);
#endif
  }
}

/// One token, rows where they lie.
template <class W>
void InPlace(const F32Product& p) {
  const float* x = p.x->f32 + p.token(0) * p.x->f32_stride;
  const W* w = reinterpret_cast<const W*>(p.rows);
  for (size_t row = 0; row < p.row_count; row += kTileRows) {
    const size_t rows = std::min(kTileRows, p.row_count - row);
    HWY_ALIGN float sums[kTileRows * kLanes] = {};
    Rows<1>(w + row * p.cols, p.cols, rows, &x, p.cols, sums);
    for (size_t r = 0; r < rows; ++r) p.out[row + r] = SumLanes(sums + r * kLanes);
  }
}

/// R decoded rows of codes times one token, to sums [R][16 lanes].
template <size_t R, bool kMins>
void CodeTile(const CodeRow* rows, const float* HWY_RESTRICT x, size_t cols, float* HWY_RESTRICT sums) {
  const D d;
  const hn::Rebind<int32_t, D> di;
  const hn::Rebind<int8_t, D> d8;
  CodeRow w[R];
  for (size_t r = 0; r < R; ++r) w[r] = rows[r];
  hn::Vec<D> acc[R * kRegisters];
  HWY_UNROLL(8)
  for (size_t i = 0; i < R * kRegisters; ++i) acc[i] = hn::Zero(d);
  for (size_t c = 0; c < cols; c += kLanes) {
    const size_t b = c / kInt8Block;
    const bool first = c % kInt8Block == 0;
    HWY_UNROLL(4)
    for (size_t r = 0; r < R; ++r) {
      const auto scale = hn::Set(d, w[r].scales[b]);
      const auto minimum = hn::Set(d, kMins ? (first ? w[r].min0 : w[r].min1)[b] : 0.0f);
      HWY_UNROLL(4)
      for (size_t k = 0; k < kRegisters; ++k) {
        const size_t at = c + k * kRegisterLanes;
        auto value = hn::Mul(scale, hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, w[r].codes + at))));
        if constexpr (kMins) value = hn::Sub(value, minimum);
        acc[r * kRegisters + k] = hn::MulAdd(value, hn::LoadU(d, x + at), acc[r * kRegisters + k]);
      }
    }
  }
  HWY_UNROLL(8)
  for (size_t i = 0; i < R * kRegisters; ++i) hn::StoreU(acc[i], d, sums + i * kRegisterLanes);
}

/// One token, rows of codes.
template <bool kMins>
bool FromCodes(const F32Product& p) {
  const size_t blocks = p.cols / kInt8Block;
  MatmulScratch& scratch = *p.scratch;
  if (!scratch.codes.ensure(kCodeRows * p.cols) || !scratch.scales.ensure(kCodeRows * blocks) ||
      !scratch.mins.ensure(2 * kCodeRows * blocks)) {
    return false;
  }
  CodeRow rows[kCodeRows];
  for (size_t r = 0; r < kCodeRows; ++r) {
    rows[r] = {scratch.codes.data() + r * p.cols, scratch.scales.data() + r * blocks,
               scratch.mins.data() + 2 * r * blocks, scratch.mins.data() + (2 * r + 1) * blocks};
  }
  const float* x = p.x->f32 + p.token(0) * p.x->f32_stride;
  for (size_t row = 0; row < p.row_count; row += kCodeRows) {
    const size_t count = std::min(kCodeRows, p.row_count - row);
    for (size_t r = 0; r < count; ++r) {
      decode_row_codes(p.type, p.rows + (row + r) * p.row_bytes, p.cols, rows[r]);
    }
    HWY_ALIGN float sums[kCodeRows * kLanes];
    if (count == kCodeRows) {
      CodeTile<kCodeRows, kMins>(rows, x, p.cols, sums);
    } else {
      for (size_t r = 0; r < count; ++r) CodeTile<1, kMins>(rows + r, x, p.cols, sums + r * kLanes);
    }
    for (size_t r = 0; r < count; ++r) p.out[row + r] = SumLanes(sums + r * kLanes);
  }
  return true;
}

/// Rows of a product, of which a panel of columns is at w + panel * panel_stride.
struct RowTile {
  size_t first, rows;
  const float* w;
  size_t row_stride, panel_stride;
};

void DecodePanel(const F32Product& p, const RowTile& tile, size_t col, float* out) {
  const size_t cols = std::min(kPanelCols, p.cols - col);
  const std::byte* from = p.rows + tile.first * p.row_bytes + format::row_bytes(p.type, col);
  for (size_t r = 0; r < tile.rows; ++r) {
    decode_row_f32(p.type, from + r * p.row_bytes, cols, out + r * tile.row_stride);
  }
}

/// The tokens [first, end) of a product; panels are decoded here if there is a buffer for one.
void TokenGroup(const F32Product& p, const RowTile& tile, size_t first, size_t end, float* panel,
                float* sums) {
  const size_t tokens = end - first;
  std::fill_n(sums, tile.rows * tokens * kLanes, 0.0f);
  for (size_t col = 0; col < p.cols; col += kPanelCols) {
    if (panel != nullptr) DecodePanel(p, tile, col, panel);
    const float* x[kTileTokens];
    for (size_t i = 0; i < tokens; ++i) x[i] = p.x->f32 + p.token(first + i) * p.x->f32_stride + col;
    RowsOf(tokens, tile.w + col / kPanelCols * tile.panel_stride, tile.row_stride, tile.rows, x,
           std::min(kPanelCols, p.cols - col), sums);
  }
  for (size_t r = 0; r < tile.rows; ++r) {
    for (size_t i = 0; i < tokens; ++i) {
      p.out[(first + i) * p.out_stride + tile.first + r] = SumLanes(sums + (r * tokens + i) * kLanes);
    }
  }
}

bool Product(const F32Product& p) {
  if (p.count == 1) {
    if (p.type == TensorType::f32) return InPlace<float>(p), true;
    if (p.type == TensorType::f16) return InPlace<hwy::float16_t>(p), true;
    if (p.type == TensorType::bf16) return InPlace<hwy::bfloat16_t>(p), true;
    return has_minimum(p.type) ? FromCodes<true>(p) : FromCodes<false>(p);
  }
  const size_t groups = (p.count + kTileTokens - 1) / kTileTokens;
  const size_t panels = (p.cols + kPanelCols - 1) / kPanelCols;
  const bool decoded = p.type != TensorType::f32, at_once = decoded && groups == 1;
  const size_t budget = kBudgetBytes / (p.cols * sizeof(float)) / kTileRows * kTileRows;
  const size_t max_rows = at_once ? kMaxRowsPanel : std::clamp(budget, kTileRows, kMaxRows);
  const size_t tile_rows = std::min(p.row_count, max_rows), panel_size = tile_rows * kPanelCols;
  AlignedBuffer<float>&weights = p.scratch->f32, &sums = p.scratch->activations;
  if (!sums.ensure(tile_rows * kTileTokens * kLanes)) return false;
  if (decoded && !weights.ensure((at_once ? 1 : panels) * panel_size)) return false;
  for (size_t row = 0; row < p.row_count; row += tile_rows) {
    RowTile tile{row, std::min(tile_rows, p.row_count - row), weights.data(), kPanelCols, panel_size};
    if (at_once) tile.panel_stride = 0;
    if (!decoded) {
      tile.w = reinterpret_cast<const float*>(p.rows) + row * p.cols;
      tile.row_stride = p.cols, tile.panel_stride = kPanelCols;
    } else if (!at_once) {
      for (size_t i = 0; i < panels; ++i) {
        DecodePanel(p, tile, i * kPanelCols, weights.data() + i * panel_size);
      }
    }
    for (size_t group = 0; group < groups; ++group) {
      TokenGroup(p, tile, group * p.count / groups, (group + 1) * p.count / groups,
                 at_once ? weights.data() : nullptr, sums.data());
    }
  }
  return true;
}

}  // namespace ds4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::cpu {

HWY_EXPORT(Product);

bool f32_product(const F32Product& product) {
  return HWY_DYNAMIC_DISPATCH(Product)(product);
}

}  // namespace ds4::cpu
#endif
