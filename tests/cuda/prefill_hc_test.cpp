// Hyper connections of a prefill chunk against float64, and the embedding of its tokens.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cuda/hc/prefill_hyper_connection.hpp"
#include "backend/cuda/prefill/embed.hpp"
#include "mixer_data.hpp"

namespace ds4::cuda {
namespace {

class PrefillHyperConnections : public DeviceTest {};

// Random streams of a run of tokens, the sublayer's output and the weights that take it back.
struct Streams {
  uint32_t tokens, d;
  std::vector<float> streams, out, weights;

  Streams(uint32_t count, uint32_t width, std::mt19937& random)
      : tokens(count),
        d(width),
        streams(normal_values(size_t{count} * 4 * width, 300.0f, random)),
        out(normal_values(size_t{count} * width, 200.0f, random)),
        weights(normal_values(size_t{count} * 24, 0.5f, random)) {
    for (size_t t = 0; t < tokens; ++t) {  // one stream small, as trained models have it
      for (size_t i = 0; i < d; ++i) streams[(t * 4 + t % 4) * d + i] *= 1e-3f;
    }
  }

  // The streams after the sublayer, in float64.
  std::vector<double> after(bool with_out) const {
    if (!with_out) return wide(streams);
    std::vector<double> result(streams.size());
    for (size_t t = 0; t < tokens; ++t) {
      const float* w = weights.data() + t * 24;
      for (size_t k = 0; k < 4; ++k) {
        for (size_t i = 0; i < d; ++i) {
          double x = double{w[4 + k]} * out[t * d + i];
          for (size_t j = 0; j < 4; ++j) x += double{w[8 + 4 * j + k]} * streams[(t * 4 + j) * d + i];
          result[(t * 4 + k) * d + i] = x;
        }
      }
    }
    return result;
  }
};

struct Result {
  std::vector<float> streams, weights, full;
  std::vector<uint16_t> high, low;

  bool operator==(const Result&) const = default;
};

// Of the tokens from `first` on.
Result run(const Streams& s, const TestMixer* mixer, bool with_out, const std::vector<float>& norm,
           uint32_t first, uint32_t count) {
  const auto part = [first, count](const std::vector<float>& all, size_t width) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first * width);
    return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count * width));
  };
  const DeviceCopy<float> streams(part(s.streams, size_t{4} * s.d)), out(part(s.out, s.d)),
      weights(part(s.weights, 24)), partial(prefill_mix_partials(count, s.d)), device_norm(norm),
      full(size_t{count} * s.d);
  const DeviceCopy<uint16_t> high(size_t{count} * s.d), low(size_t{count} * s.d);
  const PrefillStreams b{streams.data(), partial.data(), weights.data(), count, s.d};
  const DeviceMixer device_mixer = mixer == nullptr ? DeviceMixer{} : mixer->device();
  require(prefill_leave_and_mix(b, with_out ? out.data() : nullptr,
                                mixer == nullptr ? nullptr : &device_mixer, nullptr));
  require(prefill_enter(
      b, device_norm.data(),
      {reinterpret_cast<__half*>(high.data()), reinterpret_cast<__half*>(low.data()), full.data()}, nullptr));
  require(cudaDeviceSynchronize());
  return {streams.read(), weights.read(), full.read(), high.read(), low.read()};
}

void check_run(const Streams& s, const TestMixer& mixer, bool with_out, std::mt19937& random) {
  const size_t d = s.d, rows = mixer.fn.device().rows;
  const std::vector<float> norm = normal_values(d, 1.0f, random);
  const Result got = run(s, &mixer, with_out, norm, 0, s.tokens);
  const std::vector<double> after = s.after(with_out);
  EXPECT_LT(relative_l2(after, wide(got.streams)), 1e-6);
  std::vector<double> normed(s.tokens * d);
  double worst = 0;
  for (size_t t = 0; t < s.tokens; ++t) {
    const std::vector<double> w = mixer.weights(after.data() + t * 4 * d);
    for (size_t k = 0; k < rows; ++k) worst = std::max(worst, std::abs(w[k] - got.weights[t * 24 + k]));
    double squares = 0;
    for (size_t i = 0; i < d; ++i) {
      double y = 0;
      for (size_t h = 0; h < 4; ++h) y += double{got.weights[t * 24 + h]} * after[(t * 4 + h) * d + i];
      normed[t * d + i] = y;
      squares += y * y;
    }
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(d) + 1e-6);
    for (size_t i = 0; i < d; ++i) normed[t * d + i] *= factor * norm[i];
  }
  EXPECT_LT(worst, mixing_weight_bound) << "mixing weights of " << s.tokens << " tokens of width " << d;
  EXPECT_LT(relative_l2(normed, wide(got.full)), 1e-6);
  for (size_t i = 0; i < got.full.size(); ++i) {
    ASSERT_EQ(got.high[i], format::f32_to_f16(got.full[i])) << i;
    ASSERT_EQ(got.low[i], format::f32_to_f16(got.full[i] - format::f16_to_f32(got.high[i]))) << i;
  }
  // The bits of tokens on their own.
  for (const uint32_t first : {0u, s.tokens / 3, s.tokens - 1}) {
    const uint32_t count = std::min(s.tokens - first, 1 + first % 3);
    const Result some = run(s, &mixer, with_out, norm, first, count);
    const auto same = [first, count](const auto& part, const auto& all, size_t width) {
      return std::memcmp(part.data(), all.data() + first * width, count * width * sizeof(part[0])) == 0;
    };
    EXPECT_TRUE(same(some.streams, got.streams, 4 * d));
    EXPECT_TRUE(same(some.full, got.full, d));
    EXPECT_TRUE(same(some.high, got.high, d));
    for (size_t t = 0; t < count; ++t) {
      EXPECT_EQ(std::memcmp(&some.weights[t * 24], &got.weights[(first + t) * 24], rows * sizeof(float)), 0);
    }
  }
}

TEST_F(PrefillHyperConnections, EqualFloat64) {
  std::mt19937 random(1);
  for (const uint32_t d : {32u, 96u, 256u, 800u, 4096u, 7168u}) {
    for (const TensorType type : {TensorType::f16, TensorType::bf16, TensorType::f32}) {
      for (const uint32_t tokens : {1u, 2u, 15u, 16u, 17u, 50u}) {
        if (d > 1000 && (tokens == 15 || tokens == 2)) continue;
        const Streams s(tokens, d, random);
        check_run(s, TestMixer(type, 24, d, random), tokens % 2 == 1, random);
        check_run(s, TestMixer(type, 4, d, random), tokens % 2 == 0, random);
      }
    }
  }
}

TEST_F(PrefillHyperConnections, LeaveWithoutMixing) {
  std::mt19937 random(2);
  const Streams s(37, 512, random);
  const std::vector<float> norm(512, 1.0f);
  const Result got = run(s, nullptr, true, norm, 0, 37), kept = run(s, nullptr, false, norm, 0, 37);
  EXPECT_LT(relative_l2(s.after(true), wide(got.streams)), 1e-6);
  EXPECT_EQ(got.weights, s.weights);
  EXPECT_EQ(kept.streams, s.streams);
}

TEST_F(PrefillHyperConnections, HalvesAreClamped) {
  std::mt19937 random(3);
  const Streams s(3, 64, random);
  const std::vector<float> norm(64, 1e6f);
  const Result got = run(s, nullptr, true, norm, 0, 3);
  size_t clamped = 0;
  for (size_t i = 0; i < got.full.size(); ++i) {
    if (std::abs(got.full[i]) < 65504.0f) continue;
    ++clamped;
    EXPECT_EQ(got.high[i], got.full[i] > 0 ? 0x7bff : 0xfbff);
    EXPECT_EQ(format::f16_to_f32(got.low[i]), 0.0f);
  }
  EXPECT_GT(clamped, 100u);
}

TEST_F(PrefillHyperConnections, EmbeddingsAreTheRowsOfTheTable) {
  std::mt19937 random(4);
  for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q8_0}) {
    for (const uint32_t d : {32u, 256u, 4096u}) {
      ASSERT_TRUE(is_embedding_type(type));
      const TestMatrix table(type, 50, d, random);
      std::vector<RowInfo> rows(33);
      for (RowInfo& row : rows) row.token = static_cast<int32_t>(random() % 50);
      const DeviceCopy<RowInfo> device_rows(rows);
      const DeviceCopy<float> streams(rows.size() * 4 * d);
      require(embed_tokens(table.device(), device_rows.data(), 33, streams.data(), nullptr));
      require(cudaDeviceSynchronize());
      const std::vector<float> got = streams.read();
      for (size_t r = 0; r < rows.size(); ++r) {
        for (size_t h = 0; h < 4; ++h) {
          ASSERT_EQ(std::memcmp(got.data() + (r * 4 + h) * d, table.row(static_cast<size_t>(rows[r].token)),
                                d * sizeof(float)),
                    0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ds4::cuda
