#include "backend/cpu/vector_ops.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/reference.hpp"
#include "backend/cpu/rms_norm.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using test::for_every_target;
using test::random_floats;
using test::widen;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr double f32_step = 0x1p-24;  // relative error of one rounding

/// |ours - exact| <= tolerance * size of the terms, element by element.
void expect_close(const Floats& ours, const Doubles& exact, const Doubles& size, double tolerance) {
  ASSERT_EQ(ours.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(ours[i], exact[i], tolerance * size[i] + 1e-37) << "element " << i;
  }
}

Doubles magnitudes(const Floats& values) {
  Doubles out;
  for (float x : values) out.push_back(std::fabs(static_cast<double>(x)));
  return out;
}

// Rounding errors of a sum of n terms grow like sqrt(n); 4 is a margin.
double sum_tolerance(size_t n) {
  return f32_step * (4 + 4 * std::sqrt(static_cast<double>(n)));
}

TEST(VectorOps, DotAndSumOfSquares) {
  for_every_target([] {
    for (size_t n : {16u, 32u, 48u, 64u, 80u, 112u, 128u, 512u, 1040u, 4096u, 16384u}) {
      const Floats a = random_floats(n, 1), b = random_floats(n, 2, 3.0f);
      const Doubles wide_a = widen(a), wide_b = widen(b), size_a = magnitudes(a), size_b = magnitudes(b);
      const double size = reference::dot(size_a.data(), size_b.data(), n);
      EXPECT_NEAR(dot(a.data(), b.data(), n), reference::dot(wide_a.data(), wide_b.data(), n),
                  sum_tolerance(n) * size)
          << n;
      const double squares = reference::sum_of_squares(wide_a.data(), n);
      EXPECT_NEAR(sum_of_squares(a.data(), n), squares, sum_tolerance(n) * squares) << n;
    }
  });
}

TEST(VectorOps, DotTakesEveryElementOnce) {
  for_every_target([] {
    for (size_t n = 16; n <= 288; n += 16) {
      const Floats ones(n, 1.0f);
      for (size_t i = 0; i < n; ++i) {
        Floats unit(n, 0.0f);
        unit[i] = static_cast<float>(i + 1);
        ASSERT_EQ(dot(unit.data(), ones.data(), n), static_cast<float>(i + 1)) << n << " " << i;
      }
    }
  });
}

TEST(VectorOps, RmsNormOverAllMagnitudes) {
  for_every_target([] {
    for (float deviation : {1e-12f, 1e-4f, 1.0f, 900.0f, 1e6f}) {
      for (size_t n : {16u, 128u, 512u, 4096u}) {
        const Floats x = random_floats(n, 3, deviation), w = random_floats(n, 4);
        const Doubles wide_x = widen(x), wide_w = widen(w);
        Doubles exact(n), plain(n);
        reference::rms_norm(wide_x.data(), wide_w.data(), n, exact.data());
        reference::rms_norm<double>(wide_x.data(), nullptr, n, plain.data());
        Floats out(n);
        rms_norm(x.data(), w.data(), n, out.data());
        Doubles size(n);
        for (size_t i = 0; i < n; ++i) size[i] = std::fabs(exact[i]);
        expect_close(out, exact, size, 2e-6);
        Floats in_place = x;
        rms_norm(in_place.data(), nullptr, n, in_place.data());
        for (size_t i = 0; i < n; ++i) size[i] = std::fabs(plain[i]);
        expect_close(in_place, plain, size, 2e-6);
      }
    }
  });
}

TEST(VectorOps, RmsNormOfZerosIsZero) {
  for_every_target([] {
    Floats x(128, 0.0f);
    rms_norm(x.data(), nullptr, x.size(), x.data());
    EXPECT_EQ(x, Floats(128, 0.0f));
  });
}

TEST(VectorOps, ScaleAndAdd) {
  for_every_target([] {
    const Floats x = random_floats(272, 5), w = random_floats(272, 6);
    Floats scaled(272), plain(272), sum = w;
    scale(x.data(), 0.3f, w.data(), 272, scaled.data());
    scale(x.data(), 0.3f, nullptr, 272, plain.data());
    add(x.data(), 272, sum.data());
    for (size_t i = 0; i < 272; ++i) {
      ASSERT_EQ(scaled[i], x[i] * 0.3f * w[i]);
      ASSERT_EQ(plain[i], x[i] * 0.3f);
      ASSERT_EQ(sum[i], w[i] + x[i]);
    }
  });
}

TEST(VectorOps, StreamsMix) {
  for_every_target([] {
    for (size_t width : {16u, 48u, 256u, 4096u}) {
      const Floats x = random_floats(4 * width, 7, 500.0f), out = random_floats(width, 8),
                   pre = random_floats(4, 9), post = random_floats(4, 10), comb = random_floats(16, 11);
      const Doubles wide = widen(x), wide_out = widen(out), wide_pre = widen(pre), wide_post = widen(post),
                    wide_comb = widen(comb);
      Doubles exact(width), size(width), streams = wide, stream_size = magnitudes(x);
      reference::mix_streams(wide.data(), wide_pre.data(), width, exact.data());
      reference::mix_streams(magnitudes(x).data(), magnitudes(pre).data(), width, size.data());
      Floats mixed(width);
      mix_streams(x.data(), pre.data(), width, mixed.data());
      expect_close(mixed, exact, size, 4 * f32_step);

      reference::post_streams(streams.data(), wide_out.data(), wide_post.data(), wide_comb.data(), width);
      reference::post_streams(stream_size.data(), magnitudes(out).data(), magnitudes(post).data(),
                              magnitudes(comb).data(), width);
      Floats after = x;
      post_streams(after.data(), out.data(), post.data(), comb.data(), width);
      expect_close(after, streams, stream_size, 5 * f32_step);
    }
  });
}

TEST(VectorOps, SwigluClampsAndSaturates) {
  Floats gate = random_floats(256, 12, 4.0f), up = random_floats(256, 13, 8.0f);
  const float gates[] = {0.0f,   -0.0f, 10.0f,  10.0001f, 11.0f,  1e4f,  1e30f, infinity,
                         -10.0f, -11.f, -79.0f, -80.0f,   -88.0f, -1e2f, -1e4f, 1e-30f};
  std::copy(std::begin(gates), std::end(gates), gate.begin());
  up[0] = infinity, up[1] = -infinity, up[2] = 10.0f, up[3] = -10.0f, up[4] = 1e30f, up[5] = -1e30f;
  Doubles exact(256), wide_gate = widen(gate), wide_up = widen(up);
  reference::swiglu(wide_gate.data(), wide_up.data(), 10.0, 0.7, 256, exact.data());
  for_every_target([&] {
    Floats out(256);
    swiglu(gate.data(), up.data(), 10.0f, 0.7f, 256, out.data());
    for (size_t i = 0; i < 256; ++i) {
      ASSERT_NEAR(out[i], exact[i], 1e-6 * std::fabs(exact[i]) + 1e-28) << gate[i] << " " << up[i];
    }
  });
}

TEST(VectorOps, SwigluKeepsNan) {
  for_every_target([] {
    Floats gate(64, 1.0f), up(64, 1.0f), out(64);
    gate[3] = up[40] = std::numeric_limits<float>::quiet_NaN();
    swiglu(gate.data(), up.data(), 10.0f, 0.7f, 64, out.data());
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(out[i]), i == 3 || i == 40) << i;
  });
}

TEST(VectorOps, RowScores) {
  for_every_target([] {
    for (size_t dim : {16u, 128u, 512u}) {
      for (size_t heads : {1u, 2u, 3u, 4u, 5u, 7u, 16u, 64u}) {
        for (size_t count : {1u, 2u, 3u, 4u, 5u, 7u, 64u}) {
          const Floats q = random_floats(heads * dim, 14), rows = random_floats(count * dim, 15);
          const size_t stride = count + 3;
          Floats out(heads * stride, -7.0f);
          row_scores(q.data(), heads, rows.data(), count, dim, 0.25f, out.data(), stride);
          const Doubles wide_q = widen(q), wide_rows = widen(rows);
          const Doubles size_q = magnitudes(q), size_rows = magnitudes(rows);
          Doubles exact(heads * stride, -7.0), size(heads * stride);
          reference::row_scores(wide_q.data(), heads, wide_rows.data(), count, dim, 0.25, exact.data(),
                                stride);
          reference::row_scores(size_q.data(), heads, size_rows.data(), count, dim, 0.25, size.data(),
                                stride);
          expect_close(out, exact, size, sum_tolerance(dim) / 2);  // between rows of `out` nothing is written
        }
      }
    }
  });
}

// Decode, prefill and verification group rows and heads differently and must get the same bits.
TEST(VectorOps, AScoreDoesNotDependOnItsNeighbours) {
  constexpr size_t heads = 9, count = 23, dim = 512;
  const Floats q = random_floats(heads * dim, 16), rows = random_floats(count * dim, 17);
  for_every_target([&] {
    Floats all(heads * count);
    row_scores(q.data(), heads, rows.data(), count, dim, 0.1f, all.data(), count);
    for (size_t h = 0; h < heads; ++h) {
      for (size_t t = 0; t < count; ++t) {
        float alone = 0;
        row_scores(q.data() + h * dim, 1, rows.data() + t * dim, 1, dim, 0.1f, &alone, 1);
        ASSERT_EQ(all[h * count + t], alone) << h << " " << t;
      }
    }
    for (size_t begin : {1u, 2u, 3u, 5u}) {
      Floats part(heads * count);
      row_scores(q.data(), heads, rows.data() + begin * dim, count - begin, dim, 0.1f, part.data(), count);
      for (size_t h = 0; h < heads; ++h) {
        for (size_t t = begin; t < count; ++t) ASSERT_EQ(part[h * count + t - begin], all[h * count + t]);
      }
    }
  });
}

TEST(VectorOps, SoftmaxWithSink) {
  struct Case {
    float deviation, sink;
  };
  for_every_target([] {
    for (const Case& c : {Case{1, 0}, Case{30, 0}, Case{1, 40}, Case{1, -40}, Case{1000, -1e30f},
                          Case{1e-3f, 1000}, Case{1, 1e30f}}) {
      for (size_t count : {1u, 2u, 3u, 7u, 8u, 15u, 16u, 17u, 129u, 640u}) {
        Floats scores = random_floats(count, 18, c.deviation);
        Doubles exact = widen(scores);
        const double sum = reference::softmax_with_sink<double>(exact.data(), count, c.sink);
        const float ours = softmax_with_sink(scores.data(), count, c.sink);
        EXPECT_NEAR(ours, sum, 4e-6 * sum) << count << " " << c.deviation << " " << c.sink;
        // The difference from the maximum is rounded before the exponential: an error in proportion to it.
        for (size_t t = 0; t < count; ++t) {
          const double exponent = exact[t] > 0 ? -std::log(exact[t]) : 0;
          ASSERT_NEAR(scores[t], exact[t], exact[t] * (4e-7 + 2 * f32_step * exponent) + 1e-37) << t;
        }
      }
    }
  });
}

TEST(VectorOps, SoftmaxWithoutScoresIsTheSink) {
  for_every_target([] { EXPECT_EQ(softmax_with_sink(nullptr, 0, -3.0f), 1.0f); });
}

TEST(VectorOps, ASoftmaxWeightDoesNotDependOnItsPlace) {
  const Floats scores = random_floats(61, 19, 5.0f);
  for_every_target([&] {
    Floats all = scores;
    softmax_with_sink(all.data(), all.size(), 50.0f);  // the sink is the maximum of every part
    for (size_t begin = 0; begin < scores.size(); ++begin) {
      for (size_t count : {1u, 3u, 8u, 20u}) {
        if (begin + count > scores.size()) continue;
        const auto first = scores.begin() + static_cast<ptrdiff_t>(begin);
        Floats part(first, first + static_cast<ptrdiff_t>(count));
        softmax_with_sink(part.data(), count, 50.0f);
        for (size_t t = 0; t < count; ++t) ASSERT_EQ(part[t], all[begin + t]) << begin << " " << t;
      }
    }
  });
}

TEST(VectorOps, WeightedRows) {
  for_every_target([] {
    for (size_t dim : {16u, 48u, 128u, 512u}) {
      for (size_t heads : {1u, 3u, 4u, 6u, 16u}) {
        for (size_t count : {1u, 2u, 5u, 129u}) {
          const size_t stride = count + 2;
          Floats weights = random_floats(heads * stride, 20);
          const Floats rows = random_floats(count * dim, 21), factor = random_floats(heads, 22);
          Floats out(heads * dim);
          weighted_rows(weights.data(), stride, heads, rows.data(), count, dim, factor.data(), out.data());
          const Doubles w = widen(weights), r = widen(rows), f = widen(factor);
          const Doubles size_w = magnitudes(weights), size_r = magnitudes(rows), size_f = magnitudes(factor);
          Doubles exact(heads * dim), size(heads * dim);
          reference::weighted_rows(w.data(), stride, heads, r.data(), count, dim, f.data(), exact.data());
          reference::weighted_rows(size_w.data(), stride, heads, size_r.data(), count, dim, size_f.data(),
                                   size.data());
          expect_close(out, exact, size, sum_tolerance(count));
          for (size_t h = 0; h < heads; ++h) {  // a head alone gets the same bits
            Floats alone(dim);
            weighted_rows(weights.data() + h * stride, stride, 1, rows.data(), count, dim, &factor[h],
                          alone.data());
            ASSERT_TRUE(std::equal(alone.begin(), alone.end(), out.data() + h * dim)) << h;
          }
        }
      }
    }
  });
}

TEST(VectorOps, WeightedRelu) {
  for_every_target([] {
    for (size_t heads : {1u, 3u, 64u}) {
      for (size_t count : {1u, 15u, 16u, 17u, 64u}) {
        const size_t stride = 64;
        const Floats scores = random_floats(heads * stride, 23, 10.0f), weights = random_floats(heads, 24);
        Floats out((count + 15) / 16 * 16);
        weighted_relu(scores.data(), stride, heads, weights.data(), count, out.data());
        out.resize(count);
        const Doubles s = widen(scores), w = widen(weights), size_s = magnitudes(scores),
                      size_w = magnitudes(weights);
        Doubles exact(count), size(count);
        reference::weighted_relu(s.data(), stride, heads, w.data(), count, exact.data());
        reference::weighted_relu(size_s.data(), stride, heads, size_w.data(), count, size.data());
        expect_close(out, exact, size, sum_tolerance(heads));
      }
    }
  });
}

TEST(VectorOps, WeightedReluOfNegativeScoresIsZero) {
  const Floats scores(3 * 16, -2.0f), weights = {1.0f, -1.0f, 5.0f};
  for_every_target([&] {
    Floats out(16, 9.0f);
    weighted_relu(scores.data(), 16, 3, weights.data(), 16, out.data());
    EXPECT_EQ(out, Floats(16, 0.0f));
  });
}

void check_pooling(size_t count, size_t n, float deviation, double missing_share) {
  SCOPED_TRACE(testing::Message() << count << " rows of " << n << ", deviation " << deviation);
  const Floats values = random_floats(count * n, 25);
  Floats scores = random_floats(count * n, 26, deviation);
  std::mt19937 random(27);
  for (size_t i = n; i < scores.size(); ++i) {  // the first row is always there
    if (std::uniform_real_distribution<double>()(random) < missing_share) scores[i] = -infinity;
  }
  const Doubles wide_values = widen(values), wide_scores = widen(scores), sizes = magnitudes(values);
  std::vector<const float*> value_rows, score_rows;
  std::vector<const double*> wide_value_rows, wide_score_rows, size_rows;
  for (size_t t = 0; t < count; ++t) {
    value_rows.push_back(&values[t * n]), score_rows.push_back(&scores[t * n]);
    wide_value_rows.push_back(&wide_values[t * n]), wide_score_rows.push_back(&wide_scores[t * n]);
    size_rows.push_back(&sizes[t * n]);
  }
  Floats out(n);
  pool_columns(value_rows.data(), score_rows.data(), count, n, out.data());
  Doubles exact(n), size(n);
  reference::pool_columns(wide_value_rows.data(), wide_score_rows.data(), count, n, exact.data());
  reference::pool_columns(size_rows.data(), wide_score_rows.data(), count, n, size.data());
  // Score differences are rounded before the exponential, in proportion to the scores.
  expect_close(out, exact, size, sum_tolerance(count) + 16 * f32_step * (1 + deviation));
}

TEST(VectorOps, PoolColumns) {
  for_every_target([] {
    for (size_t count : {1u, 2u, 4u, 7u, 8u, 128u}) {
      for (size_t n : {16u, 128u, 512u}) {
        for (float deviation : {1e-3f, 1.0f, 20.0f, 1000.0f}) {
          for (double missing : {0.0, 0.5, 1.0}) check_pooling(count, n, deviation, missing);
        }
      }
    }
  });
}

TEST(VectorOps, PoolingSkipsRowsThatAreMissing) {
  const Floats missing(16, -infinity), low(16, -1e30f), score(16, 3.0f);
  const Floats garbage(16, 1e30f), value = random_floats(16, 28);
  const float* values[] = {garbage.data(), value.data(), garbage.data()};
  const float* scores[] = {missing.data(), score.data(), low.data()};
  for_every_target([&] {
    Floats out(16);
    pool_columns(values, scores, 3, 16, out.data());
    EXPECT_EQ(out, value);
  });
}

}  // namespace
}  // namespace ds4::cpu
