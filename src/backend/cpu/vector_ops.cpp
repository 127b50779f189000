#include "backend/cpu/vector_ops.hpp"

#include <algorithm>
#include <cmath>

// Register tiles are arrays of vectors, which SVE's sizeless types cannot form: such machines run the NEON
// kernels.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/vector_ops.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds4::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

// Products of two rows with four running sums; n a multiple of 16, which every vector length divides.
float Dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, size_t n) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), sum1);
    sum2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), sum2);
    sum3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), sum3);
  }
  for (; i < n; i += lanes) sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

float SumOfSquares(const float* x, size_t n) {
  return Dot(x, x, n);
}

void Scale(const float* x, float scale, const float* weight, size_t n, float* out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V s = hn::Set(d, scale);
  if (weight == nullptr) {
    for (size_t i = 0; i < n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), s), d, out + i);
    return;
  }
  for (size_t i = 0; i < n; i += lanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), s), hn::LoadU(d, weight + i)), d, out + i);
  }
}

void Add(const float* HWY_RESTRICT x, size_t n, float* HWY_RESTRICT out) {
  const D d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, out + i), hn::LoadU(d, x + i)), d, out + i);
  }
}

void MixStreams(const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight, size_t width,
                float* HWY_RESTRICT out) {
  const D d;
  const V w0 = hn::Set(d, weight[0]), w1 = hn::Set(d, weight[1]);
  const V w2 = hn::Set(d, weight[2]), w3 = hn::Set(d, weight[3]);
  for (size_t i = 0; i < width; i += hn::Lanes(d)) {
    V sum = hn::Mul(w0, hn::LoadU(d, x + i));
    sum = hn::MulAdd(w1, hn::LoadU(d, x + width + i), sum);
    sum = hn::MulAdd(w2, hn::LoadU(d, x + 2 * width + i), sum);
    sum = hn::MulAdd(w3, hn::LoadU(d, x + 3 * width + i), sum);
    hn::StoreU(sum, d, out + i);
  }
}

void PostStreams(float* HWY_RESTRICT x, const float* HWY_RESTRICT out, const float* HWY_RESTRICT post,
                 const float* HWY_RESTRICT comb, size_t width) {
  const D d;
  for (size_t i = 0; i < width; i += hn::Lanes(d)) {
    const V x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + width + i);
    const V x2 = hn::LoadU(d, x + 2 * width + i), x3 = hn::LoadU(d, x + 3 * width + i);
    const V o = hn::LoadU(d, out + i);
    for (size_t k = 0; k < 4; ++k) {
      V sum = hn::Mul(hn::Set(d, post[k]), o);
      sum = hn::MulAdd(hn::Set(d, comb[k]), x0, sum);
      sum = hn::MulAdd(hn::Set(d, comb[4 + k]), x1, sum);
      sum = hn::MulAdd(hn::Set(d, comb[8 + k]), x2, sum);
      sum = hn::MulAdd(hn::Set(d, comb[12 + k]), x3, sum);
      hn::StoreU(sum, d, x + k * width + i);
    }
  }
}

void Swiglu(const float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, float clamp, float weight, size_t n,
            float* HWY_RESTRICT out) {
  const D d;
  const V high = hn::Set(d, clamp), low = hn::Set(d, -clamp), one = hn::Set(d, 1.0f), w = hn::Set(d, weight);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    // Comparisons instead of Min and Max, which may make a number of NaN.
    V g = hn::LoadU(d, gate + i), u = hn::LoadU(d, up + i);
    g = hn::IfThenElse(hn::Gt(g, high), high, g);
    u = hn::IfThenElse(hn::Gt(u, high), high, hn::IfThenElse(hn::Lt(u, low), low, u));
    // The exponent is cut off where silu has already vanished in F32, so that e^-g stays finite.
    const V e = hn::Exp(d, hn::Neg(hn::Max(g, hn::Set(d, -80.0f))));
    hn::StoreU(hn::Mul(hn::Mul(hn::Div(g, hn::Add(one, e)), u), w), d, out + i);
  }
}

// One query row against one key row: two running sums, so that a register tile of 4 x 4 fits 32 registers.
template <size_t kHeads, size_t kRows>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT rows, size_t dim,
                          float scale, float* HWY_RESTRICT out, size_t out_stride) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum[kHeads][kRows];
  for (size_t h = 0; h < kHeads; ++h) {
    for (size_t t = 0; t < kRows; ++t) sum[h][t] = hn::Zero(d);
  }
  for (size_t i = 0; i < dim; i += lanes) {
    V key[kRows];
    for (size_t t = 0; t < kRows; ++t) key[t] = hn::LoadU(d, rows + t * dim + i);
    for (size_t h = 0; h < kHeads; ++h) {
      const V query = hn::LoadU(d, q + h * dim + i);
      for (size_t t = 0; t < kRows; ++t) sum[h][t] = hn::MulAdd(query, key[t], sum[h][t]);
    }
  }
  for (size_t h = 0; h < kHeads; ++h) {
    for (size_t t = 0; t < kRows; ++t) {
      out[h * out_stride + t] = scale * hn::GetLane(hn::SumOfLanes(d, sum[h][t]));
    }
  }
}

void RowScores(const float* q, size_t heads, const float* rows, size_t count, size_t dim, float scale,
               float* out, size_t out_stride) {
  size_t t = 0;
  for (; t + 4 <= count; t += 4) {
    size_t h = 0;
    for (; h + 4 <= heads; h += 4) {
      ScoreTile<4, 4>(q + h * dim, rows + t * dim, dim, scale, out + h * out_stride + t, out_stride);
    }
    for (; h < heads; ++h) {
      ScoreTile<1, 4>(q + h * dim, rows + t * dim, dim, scale, out + h * out_stride + t, out_stride);
    }
  }
  for (; t < count; ++t) {
    for (size_t h = 0; h < heads; ++h) {
      ScoreTile<1, 1>(q + h * dim, rows + t * dim, dim, scale, out + h * out_stride + t, out_stride);
    }
  }
}

float SoftmaxWithSink(float* scores, size_t count, float sink) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  float max = sink;
  for (size_t t = 0; t < count; ++t) max = std::max(max, scores[t]);
  const V m = hn::Set(d, max);
  size_t t = 0;
  for (; t + lanes <= count; t += lanes) {
    hn::StoreU(hn::Exp(d, hn::Sub(hn::LoadU(d, scores + t), m)), d, scores + t);
  }
  if (t < count) {
    // The tail goes through the same vector function, so a weight does not depend on its place in the row.
    HWY_ALIGN float tail[16] = {};
    std::copy(scores + t, scores + count, tail);
    hn::Store(hn::Exp(d, hn::Sub(hn::Load(d, tail), m)), d, tail);
    std::copy(tail, tail + (count - t), scores + t);
  }
  HWY_ALIGN float first[16] = {sink};
  hn::Store(hn::Exp(d, hn::Sub(hn::Load(d, first), m)), d, first);
  float sum = first[0];
  for (size_t i = 0; i < count; ++i) sum += scores[i];
  return sum;
}

template <size_t kHeads>
HWY_INLINE void WeightedTile(const float* HWY_RESTRICT weights, size_t weight_stride,
                             const float* HWY_RESTRICT rows, size_t count, size_t dim,
                             const float* HWY_RESTRICT factor, float* HWY_RESTRICT out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kVectors = 4;
  size_t i = 0;
  for (; i + kVectors * lanes <= dim; i += kVectors * lanes) {
    V sum[kHeads][kVectors];
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t v = 0; v < kVectors; ++v) sum[h][v] = hn::Zero(d);
    }
    for (size_t t = 0; t < count; ++t) {
      V value[kVectors];
      for (size_t v = 0; v < kVectors; ++v) value[v] = hn::LoadU(d, rows + t * dim + i + v * lanes);
      for (size_t h = 0; h < kHeads; ++h) {
        const V w = hn::Set(d, weights[h * weight_stride + t]);
        for (size_t v = 0; v < kVectors; ++v) sum[h][v] = hn::MulAdd(w, value[v], sum[h][v]);
      }
    }
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t v = 0; v < kVectors; ++v) {
        hn::StoreU(hn::Mul(sum[h][v], hn::Set(d, factor[h])), d, out + h * dim + i + v * lanes);
      }
    }
  }
  for (; i < dim; i += lanes) {
    for (size_t h = 0; h < kHeads; ++h) {
      V sum = hn::Zero(d);
      for (size_t t = 0; t < count; ++t) {
        sum = hn::MulAdd(hn::Set(d, weights[h * weight_stride + t]), hn::LoadU(d, rows + t * dim + i), sum);
      }
      hn::StoreU(hn::Mul(sum, hn::Set(d, factor[h])), d, out + h * dim + i);
    }
  }
}

void WeightedRows(const float* weights, size_t weight_stride, size_t heads, const float* rows, size_t count,
                  size_t dim, const float* factor, float* out) {
  size_t h = 0;
  for (; h + 4 <= heads; h += 4) {
    WeightedTile<4>(weights + h * weight_stride, weight_stride, rows, count, dim, factor + h, out + h * dim);
  }
  for (; h < heads; ++h) {
    WeightedTile<1>(weights + h * weight_stride, weight_stride, rows, count, dim, factor + h, out + h * dim);
  }
}

void WeightedRelu(const float* HWY_RESTRICT scores, size_t stride, size_t heads,
                  const float* HWY_RESTRICT head_weight, size_t count, float* HWY_RESTRICT out) {
  const D d;
  const V zero = hn::Zero(d);
  for (size_t t = 0; t < count; t += hn::Lanes(d)) {
    V sum = zero;
    for (size_t h = 0; h < heads; ++h) {
      sum = hn::MulAdd(hn::Set(d, head_weight[h]), hn::Max(zero, hn::LoadU(d, scores + h * stride + t)), sum);
    }
    hn::StoreU(sum, d, out + t);
  }
}

void PoolColumns(const float* const* kv, const float* const* score, size_t count, size_t n, float* out) {
  const D d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    V max = hn::LoadU(d, score[0] + i);
    for (size_t t = 1; t < count; ++t) max = hn::Max(max, hn::LoadU(d, score[t] + i));
    V weight_sum = hn::Zero(d), sum = hn::Zero(d);
    for (size_t t = 0; t < count; ++t) {
      const V difference = hn::Max(hn::Sub(hn::LoadU(d, score[t] + i), max), hn::Set(d, -200.0f));
      const V weight = hn::Exp(d, difference);
      weight_sum = hn::Add(weight_sum, weight);
      sum = hn::MulAdd(weight, hn::LoadU(d, kv[t] + i), sum);
    }
    hn::StoreU(hn::Div(sum, weight_sum), d, out + i);
  }
}

}  // namespace ds4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::cpu {

HWY_EXPORT(Dot);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(Scale);
HWY_EXPORT(Add);
HWY_EXPORT(MixStreams);
HWY_EXPORT(PostStreams);
HWY_EXPORT(Swiglu);
HWY_EXPORT(RowScores);
HWY_EXPORT(SoftmaxWithSink);
HWY_EXPORT(WeightedRows);
HWY_EXPORT(WeightedRelu);
HWY_EXPORT(PoolColumns);

float sum_of_squares(const float* x, size_t n) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, n);
}
float dot(const float* a, const float* b, size_t n) {
  return HWY_DYNAMIC_DISPATCH(Dot)(a, b, n);
}
void scale(const float* x, float factor, const float* weight, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(Scale)(x, factor, weight, n, out);
}
void add(const float* x, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(Add)(x, n, out);
}
void mix_streams(const float* x, const float weight[4], size_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(MixStreams)(x, weight, width, out);
}
void post_streams(float* x, const float* out, const float post[4], const float comb[16], size_t width) {
  HWY_DYNAMIC_DISPATCH(PostStreams)(x, out, post, comb, width);
}
void swiglu(const float* gate, const float* up, float clamp, float weight, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(Swiglu)(gate, up, clamp, weight, n, out);
}
void row_scores(const float* q, size_t heads, const float* rows, size_t count, size_t dim, float factor,
                float* out, size_t out_stride) {
  HWY_DYNAMIC_DISPATCH(RowScores)(q, heads, rows, count, dim, factor, out, out_stride);
}
float softmax_with_sink(float* scores, size_t count, float sink) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxWithSink)(scores, count, sink);
}
void weighted_rows(const float* weights, size_t weight_stride, size_t heads, const float* rows, size_t count,
                   size_t dim, const float* factor, float* out) {
  HWY_DYNAMIC_DISPATCH(WeightedRows)(weights, weight_stride, heads, rows, count, dim, factor, out);
}
void weighted_relu(const float* scores, size_t stride, size_t heads, const float* head_weight, size_t count,
                   float* out) {
  HWY_DYNAMIC_DISPATCH(WeightedRelu)(scores, stride, heads, head_weight, count, out);
}
void pool_columns(const float* const* kv, const float* const* score, size_t count, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(PoolColumns)(kv, score, count, n, out);
}

}  // namespace ds4::cpu
#endif
