// Products with F32 activations, through Highway.
// Layout: one token reads F32, F16 and BF16 rows where they lie; several tokens share a tile of rows decoded
// to F32. Preconditions: cols a multiple of 32; rows of F16, BF16 and F32 aligned to their element. Cost: one
// fma for 16 products; R rows x T tokens of accumulators load R + T registers for R * T products. Why: with
// one token memory is the limit; 4 x 6 accumulators fill the registers of AVX-512, 2 x 3 those of AVX2.
#include <algorithm>
#include <cstddef>

#include "backend/cpu/f32_kernels.hpp"
#include "format/number_formats.hpp"

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
constexpr size_t kTileBudgetBytes = 256 * 1024;

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
HWY_INLINE float SumLanes(const hn::Vec<D>* registers) {
  HWY_ALIGN float lanes[kLanes];
  for (size_t k = 0; k < kRegisters; ++k) hn::Store(registers[k], D(), lanes + k * kRegisterLanes);
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

/// R rows, `stride` elements apart, times T tokens.
template <size_t R, size_t T, class W>
void Tile(const W* HWY_RESTRICT w, size_t stride, const float* const* tokens, size_t cols, float* out,
          size_t out_stride) {
  const D d;
  const float* x[T];
  for (size_t t = 0; t < T; ++t) x[t] = tokens[t];
  hn::Vec<D> acc[R * T * kRegisters];
  for (auto& a : acc) a = hn::Zero(d);
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
  for (size_t r = 0; r < R; ++r) {
    for (size_t t = 0; t < T; ++t) out[t * out_stride + r] = SumLanes(acc + (r * T + t) * kRegisters);
  }
}

/// All of `rows` times `count` <= kTileTokens tokens.
template <size_t T, class W>
void Rows(const W* w, size_t stride, size_t rows, const float* const* tokens, size_t cols, float* out,
          size_t out_stride) {
  size_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    Tile<kTileRows, T>(w + r * stride, stride, tokens, cols, out + r, out_stride);
  }
  for (; r < rows; ++r) Tile<1, T>(w + r * stride, stride, tokens, cols, out + r, out_stride);
}

void RowsOf(size_t count, const float* w, size_t stride, size_t rows, const float* const* tokens, size_t cols,
            float* out, size_t out_stride) {
  switch (count) {
    case 1:
      return Rows<1>(w, stride, rows, tokens, cols, out, out_stride);
    case 2:
      return Rows<2>(w, stride, rows, tokens, cols, out, out_stride);
    case 3:
      return Rows<3>(w, stride, rows, tokens, cols, out, out_stride);
#if HWY_CAP_GE512
    case 4:
      return Rows<4>(w, stride, rows, tokens, cols, out, out_stride);
    case 5:
      return Rows<5>(w, stride, rows, tokens, cols, out, out_stride);
    default:
      return Rows<6>(w, stride, rows, tokens, cols, out, out_stride);
#endif
  }
}

template <class W>
void DecodeHalves(const std::byte* row, size_t cols, float* out) {
  const W* w = reinterpret_cast<const W*>(row);
  for (size_t c = 0; c < cols; c += kRegisterLanes) hn::StoreU(LoadWeights(w + c), D(), out + c);
}

void DecodeRow(TensorType type, const std::byte* row, size_t cols, float* out) {
  if (type == TensorType::f16) return DecodeHalves<hwy::float16_t>(row, cols, out);
  if (type == TensorType::bf16) return DecodeHalves<hwy::bfloat16_t>(row, cols, out);
  format::decode_row(type, row, cols, out);
}

template <class W>
void OneToken(const F32Product& p) {
  const float* x = p.x->f32 + p.token(0) * p.x->f32_stride;
  Rows<1>(reinterpret_cast<const W*>(p.rows), p.cols, p.row_count, &x, p.cols, p.out, p.out_stride);
}

bool Product(const F32Product& p) {
  if (p.count == 1) {
    if (p.type == TensorType::f32) return OneToken<float>(p), true;
    if (p.type == TensorType::f16) return OneToken<hwy::float16_t>(p), true;
    if (p.type == TensorType::bf16) return OneToken<hwy::bfloat16_t>(p), true;
  }
  const size_t budget = kTileBudgetBytes / (p.cols * sizeof(float)) / kTileRows * kTileRows;
  const size_t tile_rows = std::min(p.row_count, std::max(kTileRows, budget));
  const bool decoded = p.type != TensorType::f32;
  if (decoded && !p.scratch->f32.ensure(tile_rows * p.cols)) return false;
  const size_t groups = (p.count + kTileTokens - 1) / kTileTokens;
  for (size_t row = 0; row < p.row_count; row += tile_rows) {
    const size_t rows = std::min(tile_rows, p.row_count - row);
    const std::byte* source = p.rows + row * p.row_bytes;
    const float* w = decoded ? p.scratch->f32.data() : reinterpret_cast<const float*>(source);
    for (size_t r = 0; decoded && r < rows; ++r) {
      DecodeRow(p.type, source + r * p.row_bytes, p.cols, p.scratch->f32.data() + r * p.cols);
    }
    for (size_t group = 0; group < groups; ++group) {
      const size_t first = group * p.count / groups, end = (group + 1) * p.count / groups;
      const float* x[kTileTokens];
      for (size_t i = first; i < end; ++i) x[i - first] = p.x->f32 + p.token(i) * p.x->f32_stride;
      RowsOf(end - first, w, p.cols, rows, x, p.cols, p.out + first * p.out_stride + row, p.out_stride);
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
