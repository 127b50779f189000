// Searches for the scale and the codes of blocks, one problem in each SIMD lane (docs/quantize.md §2).
// Included once for each Highway target; no include guard of its own kind would do.
//
// Layout: element i of lane l is at [i * stride + l]. Why lanes: every sum keeps the order of a plain loop,
// so that all targets and any number of threads write the same bytes. NOLINTBEGIN(llvm-header-guard)
#if defined(DS4_FORMAT_LANE_SEARCH_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef DS4_FORMAT_LANE_SEARCH_HPP
#undef DS4_FORMAT_LANE_SEARCH_HPP
#else
#define DS4_FORMAT_LANE_SEARCH_HPP
#endif
// NOLINTEND(llvm-header-guard)

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace ds4::format::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Sub-blocks searched together, whatever the width of the registers.
constexpr size_t kLanes = 16;
/// Scales below this are nothing.
constexpr float kNothing = 1e-15f;

/// One problem after the other, for a few numbers.
using OneLane = hn::CappedTag<float, 1>;
using AllLanes = hn::CappedTag<float, kLanes>;

/// `lanes` rows of `count` values to columns; the other columns are filled with zeros.
inline void ToLanes(const float* rows, size_t count, size_t lanes, float* out) {
  for (size_t i = 0; i < count; ++i) {
    for (size_t l = 0; l < lanes; ++l) out[i * kLanes + l] = rows[l * count + i];
    for (size_t l = lanes; l < kLanes; ++l) out[i * kLanes + l] = 0;
  }
}

/// Codes 0..top of `values`, nearest and ties to even.
template <class D, class V>
HWY_INLINE V RoundToCode(D d, V values, V top) {
  return hn::Min(hn::Max(hn::Round(values), hn::Zero(d)), top);
}

struct RangeSearch {
  size_t count;         // elements of a sub-block
  float top;            // largest code
  float first, step;    // what is added to the largest code for the candidates of the inverse scale
  int last;             // number of the last candidate
  bool absolute_error;  // else squares
};

template <class D>
HWY_INLINE hn::Vec<D> RangeError(D /*d*/, bool absolute, hn::Vec<D> w, hn::Vec<D> difference) {
  return hn::Mul(w, absolute ? hn::Abs(difference) : hn::Mul(difference, difference));
}

/// x ~ scale * code - minimum with minimum >= 0, for Lanes(d) sub-blocks. Writes codes and, to [lane], scale
/// and minimum.
template <class D>
void FitRange(D d, const RangeSearch& search, const float* x, const float* w, float* codes, float* scale_out,
              float* minimum_out) {
  const auto zero = hn::Zero(d), one = hn::Set(d, 1.0f), top = hn::Set(d, search.top);
  auto low = zero, high = hn::LoadU(d, x), sum_w = zero, sum_x = zero;
  for (size_t i = 0; i < search.count; ++i) {
    const auto v = hn::LoadU(d, x + i * kLanes), weight = hn::LoadU(d, w + i * kLanes);
    low = hn::Min(low, v);
    high = hn::Max(high, v);
    sum_w = hn::Add(sum_w, weight);
    sum_x = hn::Add(sum_x, hn::Mul(weight, v));
  }
  const auto some_range = hn::Lt(low, high);
  const auto first_range = hn::IfThenElse(some_range, hn::Sub(high, low), one);
  auto inverse = hn::Div(top, first_range);
  auto scale = hn::Div(one, inverse);
  auto best = zero;
  for (size_t i = 0; i < search.count; ++i) {
    const auto v = hn::LoadU(d, x + i * kLanes);
    const auto code = RoundToCode(d, hn::Mul(inverse, hn::Sub(v, low)), top);
    hn::StoreU(hn::IfThenElseZero(some_range, code), d, codes + i * kLanes);
    const auto difference = hn::Sub(hn::Add(hn::Mul(scale, code), low), v);
    best = hn::Add(best, RangeError(d, search.absolute_error, hn::LoadU(d, w + i * kLanes), difference));
  }
  HWY_ALIGN float candidate[32 * kLanes];
  for (int s = 0; s <= search.last; ++s) {
    // An accepted candidate moves `low`, and may leave no range.
    const auto live = hn::And(some_range, hn::Lt(low, high));
    const auto range = hn::IfThenElse(live, hn::Sub(high, low), one);
    inverse = hn::Div(hn::Set(d, search.first + search.step * static_cast<float>(s) + search.top), range);
    auto sum_l = zero, sum_ll = zero, sum_xl = zero;
    for (size_t i = 0; i < search.count; ++i) {
      const auto v = hn::LoadU(d, x + i * kLanes), weight = hn::LoadU(d, w + i * kLanes);
      const auto code = RoundToCode(d, hn::Mul(inverse, hn::Sub(v, low)), top);
      hn::StoreU(code, d, candidate + i * kLanes);
      const auto weighted = hn::Mul(weight, code);
      sum_l = hn::Add(sum_l, weighted);
      sum_ll = hn::Add(sum_ll, hn::Mul(weighted, code));
      sum_xl = hn::Add(sum_xl, hn::Mul(weighted, v));
    }
    const auto determinant = hn::Sub(hn::Mul(sum_w, sum_ll), hn::Mul(sum_l, sum_l));
    const auto solvable = hn::And(live, hn::Gt(determinant, zero));
    const auto divisor = hn::IfThenElse(solvable, determinant, one);
    auto slope = hn::Div(hn::Sub(hn::Mul(sum_w, sum_xl), hn::Mul(sum_x, sum_l)), divisor);
    auto offset = hn::Div(hn::Sub(hn::Mul(sum_ll, sum_x), hn::Mul(sum_l, sum_xl)), divisor);
    const auto above = hn::And(solvable, hn::Gt(offset, zero));
    slope = hn::IfThenElse(above, hn::Div(sum_xl, hn::IfThenElse(above, sum_ll, one)), slope);
    offset = hn::IfThenElse(above, zero, offset);
    auto error = zero;
    for (size_t i = 0; i < search.count; ++i) {
      const auto code = hn::LoadU(d, candidate + i * kLanes);
      const auto difference = hn::Sub(hn::Add(hn::Mul(slope, code), offset), hn::LoadU(d, x + i * kLanes));
      error = hn::Add(error, RangeError(d, search.absolute_error, hn::LoadU(d, w + i * kLanes), difference));
    }
    const auto better = hn::And(solvable, hn::Lt(error, best));
    if (hn::AllFalse(d, better)) continue;
    for (size_t i = 0; i < search.count; ++i) {
      const auto code = hn::LoadU(d, candidate + i * kLanes);
      hn::StoreU(hn::IfThenElse(better, code, hn::LoadU(d, codes + i * kLanes)), d, codes + i * kLanes);
    }
    best = hn::IfThenElse(better, error, best);
    scale = hn::IfThenElse(better, slope, scale);
    low = hn::IfThenElse(better, offset, low);
  }
  hn::StoreU(hn::IfThenElseZero(some_range, scale), d, scale_out);
  hn::StoreU(hn::Sub(zero, low), d, minimum_out);
}

/// x ~ scale * code, x >= 0 but for single elements. Writes codes, returns the scale.
template <class D>
hn::Vec<D> FitScale(D d, size_t count, size_t stride, float top_code, const float* x, const float* w,
                    float* codes) {
  const auto zero = hn::Zero(d), one = hn::Set(d, 1.0f), top = hn::Set(d, top_code);
  auto high = zero;
  for (size_t i = 0; i < count; ++i) high = hn::Max(high, hn::LoadU(d, x + i * stride));
  const auto live = hn::Ge(high, hn::Set(d, kNothing));
  high = hn::IfThenElse(live, high, one);
  auto inverse = hn::Div(top, high);
  auto best = zero;
  for (int s = 0; s <= 8; ++s) {  // 0: no change, then -4..4 without 0
    const int change = s == 0 ? 0 : s <= 4 ? s - 5 : s - 4;
    const auto try_inverse =
        s == 0 ? inverse : hn::Div(hn::Set(d, 0.1f * static_cast<float>(change) + top_code), high);
    const auto scale = hn::Div(one, try_inverse);
    auto error = zero;
    for (size_t i = 0; i < count; ++i) {
      const auto v = hn::LoadU(d, x + i * stride);
      const auto code = hn::Min(hn::Round(hn::Mul(try_inverse, v)), top);
      const auto difference = hn::Sub(v, hn::Mul(scale, code));
      error = hn::Add(error, hn::Mul(hn::Mul(hn::LoadU(d, w + i * stride), difference), difference));
    }
    const auto better = s == 0 ? hn::Eq(zero, zero) : hn::Lt(error, best);
    best = hn::IfThenElse(better, error, best);
    inverse = hn::IfThenElse(better, try_inverse, inverse);
  }
  auto sum_xl = zero, sum_ll = zero;
  for (size_t i = 0; i < count; ++i) {
    const auto v = hn::LoadU(d, x + i * stride), weight = hn::LoadU(d, w + i * stride);
    const auto code = hn::Min(hn::Round(hn::Mul(inverse, v)), top);
    const auto weighted = hn::Mul(weight, code);
    sum_xl = hn::Add(sum_xl, hn::Mul(hn::Mul(weight, v), code));
    sum_ll = hn::Add(sum_ll, hn::Mul(weighted, code));
    // A negative code stands in an unsigned byte, whose large value takes the element out of what follows.
    const auto kept = hn::IfThenElse(hn::Lt(code, zero), hn::Add(code, hn::Set(d, 256.0f)), code);
    hn::StoreU(hn::IfThenElseZero(live, kept), d, codes + i * stride);
  }
  for (int pass = 0; pass < 5; ++pass) {
    auto changed = hn::Lt(one, zero);
    for (size_t i = 0; i < count; ++i) {
      const auto v = hn::LoadU(d, x + i * stride), weight = hn::LoadU(d, w + i * stride);
      const auto code = hn::LoadU(d, codes + i * stride);
      const auto weighted_x = hn::Mul(weight, v);
      auto p = hn::Sub(sum_xl, hn::Mul(weighted_x, code));
      auto q = hn::Sub(sum_ll, hn::Mul(hn::Mul(weight, code), code));
      const auto usable = hn::And(live, hn::And(hn::Gt(p, zero), hn::Gt(q, zero)));
      const auto divisor = hn::IfThenElse(usable, p, one);
      const auto next = hn::Min(hn::Round(hn::Div(hn::Mul(v, q), divisor)), top);
      p = hn::Add(p, hn::Mul(weighted_x, next));
      q = hn::Add(q, hn::Mul(hn::Mul(weight, next), next));
      const auto gain = hn::Gt(hn::Mul(hn::Mul(p, p), sum_ll), hn::Mul(hn::Mul(sum_xl, sum_xl), q));
      const auto accept = hn::And(hn::And(usable, hn::Ne(next, code)), gain);
      if (hn::AllFalse(d, accept)) continue;
      changed = hn::Or(changed, accept);
      const auto kept = hn::IfThenElse(hn::Lt(next, zero), hn::Add(next, hn::Set(d, 256.0f)), next);
      hn::StoreU(hn::IfThenElse(accept, kept, code), d, codes + i * stride);
      sum_xl = hn::IfThenElse(accept, p, sum_xl);
      sum_ll = hn::IfThenElse(accept, q, sum_ll);
    }
    if (hn::AllFalse(d, changed)) break;
  }
  const auto valid = hn::And(live, hn::Gt(sum_ll, zero));
  return hn::IfThenElseZero(valid, hn::Div(sum_xl, hn::IfThenElse(valid, sum_ll, one)));
}

}  // namespace ds4::format::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
