// Hyper connections of a decode pass against float64: out of one sublayer, into the next.
#include "backend/cuda/hc/hyper_connection.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backend/cuda/moe/experts.hpp"
#include "finish_mix_kernel.hpp"
#include "mixer_data.hpp"

namespace ds4::cuda {
namespace {

class HyperConnections : public DeviceTest {};

constexpr size_t kept_weights = 20;  // post and comb

// Rows of a pass: streams, the output of the sublayer in progress and the weights that take it back.
struct Rows {
  size_t count, d;
  std::vector<float> streams, out, weights;

  Rows(size_t rows, size_t width, std::mt19937& random)
      : count(rows),
        d(width),
        streams(normal_values(rows * 4 * width, 300.0f, random)),
        out(normal_values(rows * width, 200.0f, random)),
        weights(normal_values(rows * kept_weights, 0.5f, random)) {
    for (size_t r = 0; r < rows; ++r) {  // one stream small, as trained models have it
      for (size_t i = 0; i < d; ++i) streams[(r * 4 + r % 4) * d + i] *= 1e-3f;
    }
  }

  // The given rows, in that order.
  Rows pick(const std::vector<size_t>& which) const {
    Rows result(*this);
    result.count = which.size();
    const auto take = [&](const std::vector<float>& all, size_t width) {
      std::vector<float> some;
      for (const size_t r : which) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(r * width);
        some.insert(some.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
      }
      return some;
    };
    result.streams = take(streams, 4 * d);
    result.out = take(out, d);
    result.weights = take(weights, kept_weights);
    return result;
  }
};

struct Result {
  std::vector<float> streams, weights, normed, scales;
  std::vector<int8_t> codes;
};

// Leaves a sublayer, enters the next one, and finishes its mixing in blocks of `threads`.
Result run(const Rows& rows, bool with_out, const TestMixer& mixer, const std::vector<float>& norm,
           int threads = 256) {
  const size_t count = rows.count, d = rows.d;
  const DeviceCopy<float> streams(rows.streams), out(rows.out), weights(rows.weights), device_norm(norm),
      partial(count * d / mix_slice_columns * mix_values), normed(count * d), scales(count * d / 32);
  const DeviceCopy<int8_t> codes(count * d);
  const StreamBuffers b{streams.data(), partial.data(), weights.data(),     normed.data(),
                        codes.data(),   scales.data(),  static_cast<int>(d)};
  const DeviceMixer device_mixer = mixer.device();
  const int height = static_cast<int>(count);
  require(leave_and_mix(b, with_out ? out.data() : nullptr, &device_mixer, height, nullptr));
  require(enter(b, device_mixer, device_norm.data(), height, nullptr));
  if (device_mixer.fn.rows == 24) launch_finish_mix(MixFinish(b, device_mixer), height, threads);
  require(cudaGetLastError());
  require(cudaDeviceSynchronize());
  return {streams.read(), weights.read(), normed.read(), scales.read(), codes.read()};
}

// Row `a` of one result and row `b` of another have the same bits.
void expect_same_row(const Result& x, size_t a, const Result& y, size_t b, size_t d) {
  const auto same = [&](const auto& left, const auto& right, size_t width) {
    return std::memcmp(left.data() + a * width, right.data() + b * width, width * sizeof(left[0])) == 0;
  };
  EXPECT_TRUE(same(x.streams, y.streams, 4 * d)) << "streams of row " << b;
  EXPECT_TRUE(same(x.weights, y.weights, kept_weights)) << "post and comb of row " << b;
  EXPECT_TRUE(same(x.normed, y.normed, d)) << "input of row " << b;
  EXPECT_TRUE(same(x.codes, y.codes, d)) << "codes of row " << b;
  EXPECT_TRUE(same(x.scales, y.scales, d / 32)) << "scales of row " << b;
}

// The streams after the sublayer: five products, each of which rounds once.
std::vector<double> check_streams(const Rows& rows, bool with_out, const Result& got) {
  std::vector<double> expected = wide(rows.streams);
  if (!with_out) {
    EXPECT_EQ(got.streams, rows.streams);
    return expected;
  }
  const size_t d = rows.d;
  const std::vector<double> weights = wide(rows.weights), out = wide(rows.out);
  for (size_t r = 0; r < rows.count; ++r) {
    double* streams = expected.data() + r * 4 * d;
    const double* post = weights.data() + r * kept_weights;
    std::vector<double> magnitude(streams, streams + 4 * d), sizes(d), factors(post, post + kept_weights);
    for (double& x : magnitude) x = std::abs(x);
    for (double& x : factors) x = std::abs(x);
    for (size_t i = 0; i < d; ++i) sizes[i] = std::abs(out[r * d + i]);
    cpu::reference::post_streams(streams, out.data() + r * d, post, post + 4, d);
    cpu::reference::post_streams(magnitude.data(), sizes.data(), factors.data(), factors.data() + 4, d);
    size_t wrong = 0;
    for (size_t i = 0; i < 4 * d; ++i) {
      const double error = std::abs(got.streams[r * 4 * d + i] - streams[i]);
      wrong += !(error <= 6 * f32_rounding * magnitude[i]);
    }
    EXPECT_EQ(wrong, 0u) << "stream values of row " << r;
  }
  return expected;
}

// The sublayer's input. Its factor 1 / rms comes from the products of the streams with each other, so its
// error is in units of the sum of magnitudes of those terms, `cancelling` times the mean square.
void check_input(const std::vector<double>& streams, const std::vector<double>& weights,
                 const std::vector<float>& norm, const Result& got, size_t row) {
  const size_t d = norm.size();
  const double* x = streams.data() + row * 4 * d;
  std::vector<double> mixed(d), expected(d);
  cpu::reference::mix_streams(x, weights.data(), d, mixed.data());
  double magnitude = 0;
  for (size_t h = 0; h < 4; ++h) {
    for (size_t k = 0; k < 4; ++k) {
      magnitude += weights[h] * weights[k] * std::abs(cpu::reference::dot(x + h * d, x + k * d, d));
    }
  }
  const double squares = cpu::reference::sum_of_squares(mixed.data(), d) + 1e-6 * static_cast<double>(d);
  const double cancelling = std::max(1.0, magnitude / squares);
  cpu::reference::rms_norm(mixed.data(), wide(norm).data(), d, expected.data());
  const auto begin = got.normed.begin() + static_cast<std::ptrdiff_t>(row * d);
  const std::vector<float> input(begin, begin + static_cast<std::ptrdiff_t>(d));
  EXPECT_LT(relative_l2(expected, wide(input)), 2e-6 * cancelling) << "row " << row << " of width " << d;
  std::vector<int8_t> codes(d);
  std::vector<float> scales(d / 32);
  format::quantize_activations_q8_0(input.data(), d, codes.data(), scales.data());
  EXPECT_EQ(std::memcmp(codes.data(), got.codes.data() + row * d, d), 0) << "codes of row " << row;
  EXPECT_EQ(std::memcmp(scales.data(), got.scales.data() + row * d / 32, d / 32 * sizeof(float)), 0)
      << "scales of row " << row;
}

void check(const Rows& rows, bool with_out, const TestMixer& mixer, std::mt19937& random) {
  const size_t d = rows.d;
  const std::vector<float> norm = normal_values(d, 1.0f, random);
  const Result got = run(rows, with_out, mixer, norm);
  const std::vector<double> after = check_streams(rows, with_out, got);
  double worst = 0;
  for (size_t r = 0; r < rows.count; ++r) {
    const std::vector<double> weights = mixer.weights(after.data() + r * 4 * d);
    check_input(after, weights, norm, got, r);
    for (size_t k = 4; k < weights.size(); ++k) {
      const double error = std::abs(weights[k] - got.weights[r * kept_weights + k - 4]);
      worst = std::max(worst, std::isnan(error) ? 1.0 : error);
    }
  }
  EXPECT_LT(worst, mixing_weight_bound) << "post and comb of " << rows.count << " rows of width " << d;
}

constexpr TensorType mixer_types[] = {TensorType::f16, TensorType::bf16, TensorType::f32};

// Widths of Nano, Flash and Pro, and some that end a group of slices early.
TEST_F(HyperConnections, EqualFloat64) {
  std::mt19937 random(1);
  for (const uint32_t d : {128u, 256u, 384u, 1152u, 4096u, 7168u, 8192u}) {
    for (const TensorType type : mixer_types) {
      for (const size_t count : {1ul, 2ul, 3ul, 5ul, 8ul, 16ul}) {
        if (d > 4096 && count > 3) continue;
        const Rows rows(count, d, random);
        check(rows, count % 2 == 1, TestMixer(type, 24, d, random), random);
        check(rows, count % 2 == 0, TestMixer(type, 4, d, random), random);
      }
    }
  }
}

TEST_F(HyperConnections, RowsDoNotDependOnOthers) {
  std::mt19937 random(2);
  for (const uint32_t d : {256u, 4096u, 7168u}) {
    for (const TensorType type : mixer_types) {
      const TestMixer mixer(type, type == TensorType::f32 ? 4 : 24, d, random);
      const std::vector<float> norm = normal_values(d, 1.0f, random);
      const Rows rows(max_rows, d, random);
      const Result all = run(rows, true, mixer, norm);
      std::vector<size_t> order(max_rows);
      std::iota(order.begin(), order.end(), size_t{0});
      for (size_t count = 1; count <= order.size(); ++count) {
        std::shuffle(order.begin(), order.end(), random);
        const std::vector<size_t> some(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
        const Result part = run(rows.pick(some), true, mixer, norm);
        for (size_t r = 0; r < count; ++r) expect_same_row(part, r, all, some[r], d);
      }
    }
  }
}

// Streams that nearly cancel each other in the mixture, all zero, very large, and broken ones.
TEST_F(HyperConnections, UnusualStreams) {
  constexpr uint32_t d = 512;
  std::mt19937 random(3);
  Rows rows(6, d, random);
  float* x = rows.streams.data();
  const auto row = [&](size_t r) { return x + r * 4 * d; };
  for (size_t i = 0; i < d; ++i) {
    row(0)[i] = 300.0f + 0.1f * row(0)[i];
    row(0)[d + i] = -1.1f * row(0)[i];
    row(0)[2 * d + i] = row(0)[3 * d + i] = 0.0f;
  }
  std::fill_n(row(1), 4 * d, 0.0f);
  for (size_t i = 0; i < 4 * d; ++i) {
    row(2)[i] *= 1e13f;
    row(3)[i] *= 1e-8f;
  }
  row(4)[d + 7] = std::numeric_limits<float>::quiet_NaN();
  const TestMixer mixer(TensorType::f16, 24, d, random);
  const std::vector<float> norm = normal_values(d, 1.0f, random);
  const Result got = run(rows, false, mixer, norm);
  const std::vector<double> streams = wide(rows.streams);
  for (const size_t r : {0ul, 2ul, 3ul, 5ul}) {
    SCOPED_TRACE(r);
    const std::vector<double> weights = mixer.weights(streams.data() + r * 4 * d);
    check_input(streams, weights, norm, got, r);
    for (size_t k = 4; k < 24; ++k) {
      EXPECT_NEAR(got.weights[r * kept_weights + k - 4], weights[k], mixing_weight_bound) << k;
    }
  }
  for (size_t i = 0; i < d; ++i) {
    ASSERT_EQ(got.normed[d + i], 0.0f) << "a row of zeros";
    ASSERT_EQ(got.codes[d + i], 0) << "a row of zeros";
    ASSERT_TRUE(std::isnan(got.normed[4 * d + i])) << "a row with NaN";
  }
}

// Every size of block sums in an order of its own.
TEST_F(HyperConnections, AnyBlockFinishesTheMixing) {
  std::mt19937 random(4);
  for (const uint32_t d : {256u, 7168u}) {
    const TestMixer mixer(TensorType::bf16, 24, d, random);
    const Rows rows(3, d, random);
    const std::vector<float> norm(d, 1.0f);
    const std::vector<double> streams = wide(rows.streams);
    for (const int threads : {32, 64, 128, 160, 256, 512, 1024}) {
      const Result got = run(rows, false, mixer, norm, threads);
      for (size_t r = 0; r < rows.count; ++r) {
        const std::vector<double> weights = mixer.weights(streams.data() + r * 4 * d);
        for (size_t k = 4; k < 24; ++k) {
          EXPECT_NEAR(got.weights[r * kept_weights + k - 4], weights[k], mixing_weight_bound)
              << threads << " threads, row " << r << ", value " << k;
        }
      }
    }
  }
}

TEST_F(HyperConnections, LeaveWithoutMixing) {
  std::mt19937 random(5);
  for (const uint32_t d : {256u, 4096u}) {
    const Rows rows(5, d, random);
    const DeviceCopy<float> streams(rows.streams), out(rows.out), weights(rows.weights);
    StreamBuffers b;
    b.streams = streams.data();
    b.weights = weights.data();
    b.width = static_cast<int>(d);
    require(leave_and_mix(b, out.data(), nullptr, 5, nullptr));
    require(cudaDeviceSynchronize());
    Result got;
    got.streams = streams.read();
    check_streams(rows, true, got);
    EXPECT_EQ(weights.read(), rows.weights);
  }
}

// The product that ends a sublayer finishes its mixing beside, and computes the same with it as without.
TEST_F(HyperConnections, ExpertsFinishTheMixing) {
  constexpr uint32_t d = 256, features = 64, outputs = 96, experts = 4, used = 2;
  std::mt19937 random(6);
  const TestMixer mixer(TensorType::f16, 24, d, random);
  const TestMatrix down(TensorType::q8_0, experts * outputs, features, random),
      shared(TensorType::q8_0, outputs, features, random);
  const DeviceMixer device_mixer = mixer.device();
  for (const uint32_t tokens : {1u, 2u, 5u, 16u}) {
    const Rows rows(tokens, d, random);
    const TestActivations mid(size_t{tokens} * (used + 1), features, random);
    std::vector<int32_t> ids;
    for (uint32_t t = 0; t < tokens; ++t) {
      ids.push_back(static_cast<int32_t>(t % 3));
      ids.push_back(3);
    }
    const DeviceCopy<int32_t> device_ids(ids);
    const DeviceCopy<float> streams(rows.streams), weights(tokens * kept_weights), plain(tokens * outputs),
        out(tokens * outputs), partial(size_t{tokens} * d / mix_slice_columns * mix_values);
    StreamBuffers b;
    b.streams = streams.data();
    b.partial = partial.data();
    b.weights = weights.data();
    b.width = d;
    require(leave_and_mix(b, nullptr, &device_mixer, static_cast<int>(tokens), nullptr));
    ExpertsDown args;
    args.down = down.device();
    args.shared_down = shared.device();
    args.mid = mid.device();
    args.ids = device_ids.data();
    args.out = plain.data();
    args.out_stride = outputs;
    args.tokens = tokens;
    args.experts_per_token = used;
    args.outputs = outputs;
    require(experts_down(args, nullptr));
    args.out = out.data();
    args.mix = MixFinish(b, device_mixer);
    require(experts_down(args, nullptr));
    require(cudaDeviceSynchronize());
    EXPECT_EQ(out.read(), plain.read()) << tokens << " tokens";
    const std::vector<float> got = weights.read();
    const std::vector<double> values = wide(rows.streams);
    for (size_t r = 0; r < tokens; ++r) {
      const std::vector<double> expected = mixer.weights(values.data() + r * 4 * d);
      for (size_t k = 4; k < 24; ++k) {
        EXPECT_NEAR(got[r * kept_weights + k - 4], expected[k], mixing_weight_bound)
            << "row " << r << " of " << tokens << ", value " << k;
      }
    }
  }
}

}  // namespace
}  // namespace ds4::cuda
