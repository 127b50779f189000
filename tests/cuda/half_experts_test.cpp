// Expert products of a prefill pass with F16 operands against float64, and the bits of a token among other
// tokens, with both kernels.
#include "backend/cuda/gemm/half_experts.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "product_data.hpp"

namespace ds4::cuda {
namespace {

class HalfExpertsTest : public DeviceTest {};

constexpr PrefillKernel kernels[] = {PrefillKernel::best, PrefillKernel::portable};

/// How tokens choose their experts: at random, all the same ones, or sometimes one expert twice.
enum class Choice { random, same, repeated };

struct Shape {
  uint32_t experts, top, width, features, tokens;
};

double root_mean_square(const TestMatrix& m) {
  double sum = 0;
  const uint32_t rows = std::min(m.device().rows, 8u), cols = m.device().cols;
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t i = 0; i < cols; ++i) sum += double{m.row(r)[i]} * double{m.row(r)[i]};
  }
  return std::sqrt(sum / (double{1} * rows * cols));
}

double dot(const float* a, const double* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

struct Layer {
  Shape shape;
  std::mt19937 random{7};
  TestMatrix gate, up, down, shared_gate, shared_up, shared_down;
  std::vector<__half> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  uint32_t x_stride, out_stride;

  Layer(const Shape& s, TensorType routed, TensorType down_type, TensorType shared, Choice choice)
      : shape(s),
        gate(routed, s.experts * s.features, s.width, random),
        up(routed, s.experts * s.features, s.width, random),
        down(down_type, s.experts * s.width, s.features, random),
        shared_gate(shared, s.features, s.width, random),
        shared_up(shared, s.features, s.width, random),
        shared_down(shared, s.width, s.features, random),
        x_stride(s.width + 32),
        out_stride(s.width + 3) {
    // Gate values of ordinary size, some beyond the limit of 10.
    const double scale = 4 / (root_mean_square(gate) * std::sqrt(double{1} * s.width));
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < size_t{s.tokens} * x_stride; ++i) {
      x.push_back(i % x_stride < s.width ? __double2half(normal(random) * scale) : __ushort_as_half(0x7e00));
    }
    for (uint32_t t = 0; t < s.tokens; ++t) {
      std::vector<int32_t> order(s.experts);
      std::iota(order.begin(), order.end(), 0);
      if (s.experts > s.top) order.erase(order.begin() + s.experts / 2);  // nobody takes this one
      if (choice != Choice::same) std::shuffle(order.begin(), order.end(), random);
      if (choice == Choice::repeated && t % 5 == 0) order[1] = order[0];
      std::sort(order.begin(), order.begin() + s.top);
      ids.insert(ids.end(), order.begin(), order.begin() + s.top);
      for (uint32_t k = 0; k < s.top; ++k) {
        weights.push_back(0.1f + 0.01f * static_cast<float>(random() % 90));
      }
    }
  }

  std::vector<float> run(uint32_t first, uint32_t tokens, PrefillKernel kernel,
                         const HalfExpertInputSums& sums = {}) const {
    const DeviceCopy<__half> device_x(x);
    const DeviceCopy<int32_t> device_ids(ids);
    const DeviceCopy<float> device_weights(weights), out(size_t{tokens} * out_stride + 4);
    const DeviceCopy<uint8_t> scratch(
        half_experts_scratch_bytes(tokens, shape.experts, shape.top, shape.width, shape.features));
    HalfExperts a;
    a.gate = gate.device();
    a.up = up.device();
    a.down = down.device();
    a.shared_gate = shared_gate.device();
    a.shared_up = shared_up.device();
    a.shared_down = shared_down.device();
    a.x = {device_x.data() + size_t{first} * x_stride, nullptr, x_stride};
    a.ids = device_ids.data() + size_t{first} * shape.top;
    a.weights = device_weights.data() + size_t{first} * shape.top;
    a.out = out.data();
    a.out_stride = out_stride;
    a.tokens = tokens;
    a.experts = shape.experts;
    a.experts_per_token = shape.top;
    a.scratch = scratch.data();
    a.sums = sums;
    require(half_experts(a, nullptr, kernel));
    require(cudaDeviceSynchronize());
    return out.read();
  }

  std::vector<double> input(size_t token) const {
    std::vector<double> values(shape.width);
    for (size_t i = 0; i < values.size(); ++i) values[i] = __half2float(x[token * x_stride + i]);
    return values;
  }
  /// weight * swiglu(gate . x, up . x) of one expert.
  std::vector<double> middle(const double* token, const TestMatrix& g, const TestMatrix& u, size_t expert,
                             double weight) const {
    std::vector<double> mid(shape.features);
    for (size_t f = 0; f < mid.size(); ++f) {
      const size_t row = expert * shape.features + f;
      const double a = std::min(dot(g.row(row), token, shape.width), 10.0);
      const double b = std::clamp(dot(u.row(row), token, shape.width), -10.0, 10.0);
      mid[f] = a / (1 + std::exp(-a)) * b * weight;
    }
    return mid;
  }
  /// Adds weight * down . swiglu(gate . x, up . x) of one expert.
  void add_expert(const double* token, const TestMatrix& g, const TestMatrix& u, const TestMatrix& d,
                  size_t expert, double weight, std::vector<double>& sum) const {
    const std::vector<double> mid = middle(token, g, u, expert, weight);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += dot(d.row(expert * shape.width + i), mid.data(), shape.features);
    }
  }
  std::vector<double> expected(size_t token) const {
    const std::vector<double> values = input(token);
    std::vector<double> sum(shape.width);
    for (size_t k = 0; k < shape.top; ++k) {
      const size_t at = token * shape.top + k;
      add_expert(values.data(), gate, up, down, static_cast<size_t>(ids[at]), double{weights[at]}, sum);
    }
    add_expert(values.data(), shared_gate, shared_up, shared_down, 0, 1, sum);
    return sum;
  }
};

/// A sample of tokens against float64; every row written, nothing beside it; the bits of parts of the pass.
void check(const Layer& layer, const std::string& what) {
  const Shape& s = layer.shape;
  const size_t step = std::max(s.tokens / 9, 1u);
  std::vector<std::vector<double>> expected;
  for (size_t t = 0; t < s.tokens; t += step) expected.push_back(layer.expected(t));
  for (const PrefillKernel kernel : kernels) {
    const std::string where = what + (kernel == PrefillKernel::best ? "" : ", portable");
    const std::vector<float> all = layer.run(0, s.tokens, kernel);
    for (size_t t = 0; t < s.tokens; ++t) {
      for (size_t i = 0; i < layer.out_stride; ++i) {
        ASSERT_EQ(std::isnan(all[t * layer.out_stride + i]), i >= s.width) << where << " " << t << " " << i;
      }
    }
    for (size_t e = 0; e < expected.size(); ++e) {
      double error = 0, magnitude = 0, worst = 0;
      for (size_t i = 0; i < s.width; ++i) {
        const double difference = all[e * step * layer.out_stride + i] - expected[e][i];
        error += difference * difference;
        magnitude += expected[e][i] * expected[e][i];
        worst = std::max(worst, std::abs(difference));
      }
      EXPECT_LE(std::sqrt(error / magnitude), 2e-3) << where << " token " << e * step;
      EXPECT_LE(worst, 0.01 * std::sqrt(magnitude / s.width)) << where << " token " << e * step;
    }
    for (const uint32_t tokens : {1u, 17u, 64u, 100u}) {
      if (tokens >= s.tokens) break;
      const uint32_t first = (s.tokens - tokens) / 3;
      const std::vector<float> some = layer.run(first, tokens, kernel);
      for (size_t t = 0; t < tokens; ++t) {
        ASSERT_EQ(std::memcmp(some.data() + t * layer.out_stride, all.data() + (first + t) * layer.out_stride,
                              s.width * sizeof(float)),
                  0)
            << where << " token " << t << " of " << tokens;
      }
    }
  }
}

std::string name(TensorType type) {
  return std::string(format::type_name(type));
}

TEST_F(HalfExpertsTest, EveryRoutedFormat) {
  for (const TensorType type : every_type) {
    check(Layer({5, 2, 512, 256, 270}, type, type, TensorType::q8_0, Choice::random), name(type));
  }
}

TEST_F(HalfExpertsTest, EverySharedFormat) {
  for (const TensorType type : every_type) {
    check(Layer({3, 2, 256, 512, 150}, TensorType::iq2_xxs, TensorType::q2_k, type, Choice::random),
          "shared " + name(type));
  }
}

// Columns that end inside a step and rows inside a tile, one expert, one token, eight experts of a token.
TEST_F(HalfExpertsTest, OddShapes) {
  for (const Shape& s : {Shape{1, 1, 32, 32, 1}, Shape{9, 8, 288, 96, 131}, Shape{40, 3, 160, 416, 33},
                         Shape{256, 6, 128, 64, 257}, Shape{8, 2, 256, 256, 2}}) {
    for (const TensorType type : {TensorType::q8_0, TensorType::mxfp4, TensorType::f16}) {
      check(Layer(s, type, type, TensorType::q8_0, Choice::random),
            name(type) + " " + std::to_string(s.width) + " " + std::to_string(s.features));
    }
  }
  check(
      Layer({384, 6, 768, 256, 200}, TensorType::iq2_xxs, TensorType::q2_k, TensorType::q8_0, Choice::random),
      "384 experts");
}

TEST_F(HalfExpertsTest, AllTokensOnTheSameExpertsAndRepeatedExperts) {
  for (const Choice choice : {Choice::same, Choice::repeated}) {
    check(Layer({7, 3, 512, 256, 700}, TensorType::iq2_xxs, TensorType::q2_k, TensorType::q8_0, choice),
          choice == Choice::same ? "same" : "repeated");
  }
}

/// Sums of the inputs of experts.
struct InputSums {
  std::vector<double> gate_up, down;
  std::vector<unsigned long long> tokens;

  bool operator==(const InputSums&) const = default;
};

/// The sums after passes over the tokens before each of `ends` that no pass before took.
InputSums collect(const Layer& layer, const std::vector<uint32_t>& ends, PrefillKernel kernel) {
  const Shape& s = layer.shape;
  const DeviceCopy<double> gate_up(std::vector<double>(s.experts * size_t{s.width})),
      down(std::vector<double>(s.experts * size_t{s.features}));
  const DeviceCopy<unsigned long long> tokens(std::vector<unsigned long long>(s.experts));
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    layer.run(begin, end - begin, kernel, {gate_up.data(), down.data(), tokens.data()});
    begin = end;
  }
  return {gate_up.read(), down.read(), tokens.read()};
}

InputSums expected_inputs(const Layer& layer) {
  const Shape& s = layer.shape;
  InputSums sums{std::vector<double>(s.experts * size_t{s.width}),
                 std::vector<double>(s.experts * size_t{s.features}),
                 std::vector<unsigned long long>(s.experts)};
  for (size_t t = 0; t < s.tokens; ++t) {
    const std::vector<double> x = layer.input(t);
    for (size_t k = 0; k < s.top; ++k) {
      const auto e = static_cast<size_t>(layer.ids[t * s.top + k]);
      const double weight = layer.weights[t * s.top + k];
      const std::vector<double> mid = layer.middle(x.data(), layer.gate, layer.up, e, weight);
      for (size_t i = 0; i < s.width; ++i) sums.gate_up[e * s.width + i] += x[i] * x[i];
      for (size_t i = 0; i < s.features; ++i) sums.down[e * s.features + i] += mid[i] * mid[i];
      ++sums.tokens[e];
    }
  }
  return sums;
}

// Inputs of gate and up are given, so that their sums are exact; those of down are computed.
TEST_F(HalfExpertsTest, SumsOfInputs) {
  for (const Shape& s : {Shape{5, 2, 512, 256, 270}, Shape{9, 8, 288, 96, 131}, Shape{1, 1, 32, 32, 1},
                         Shape{64, 6, 128, 160, 257}}) {
    for (const Choice choice : {Choice::random, Choice::same, Choice::repeated}) {
      if (choice == Choice::repeated && s.top < 2) continue;
      const Layer layer(s, TensorType::q8_0, TensorType::q8_0, TensorType::q8_0, choice);
      const InputSums expected = expected_inputs(layer);
      for (const PrefillKernel kernel : kernels) {
        const InputSums sums = collect(layer, {s.tokens}, kernel);
        EXPECT_EQ(sums.tokens, expected.tokens);
        EXPECT_EQ(sums.gate_up, expected.gate_up);
        for (size_t e = 0; e < s.experts; ++e) {
          double squares = 0;
          for (size_t i = e * s.features; i < (e + 1) * s.features; ++i) squares += expected.down[i];
          const double scale = squares / s.features;
          for (size_t i = e * s.features; i < (e + 1) * s.features; ++i)
            ASSERT_NEAR(sums.down[i], expected.down[i], 0.01 * scale) << e << " " << i;
        }
        if (s.tokens < 100) continue;
        EXPECT_TRUE(collect(layer, {1, 40, s.tokens}, kernel) == sums);
      }
    }
  }
}

TEST_F(HalfExpertsTest, CollectingChangesNoBit) {
  const Layer layer({5, 2, 512, 256, 270}, TensorType::iq2_xxs, TensorType::q2_k, TensorType::q8_0,
                    Choice::random);
  const DeviceCopy<double> gate_up(std::vector<double>(5 * 512)), down(std::vector<double>(5 * 256));
  const DeviceCopy<unsigned long long> tokens(std::vector<unsigned long long>(5));
  for (const PrefillKernel kernel : kernels) {
    const auto plain = layer.run(0, 270, kernel);
    const auto collected = layer.run(0, 270, kernel, {gate_up.data(), down.data(), tokens.data()});
    EXPECT_EQ(std::memcmp(plain.data(), collected.data(), plain.size() * sizeof(float)), 0);
  }
}

TEST_F(HalfExpertsTest, RefusesShapesItCannotRead) {
  const Layer layer({4, 2, 256, 256, 3}, TensorType::q8_0, TensorType::q8_0, TensorType::q8_0,
                    Choice::random);
  alignas(16) static float memory[4];
  HalfExperts good;
  good.gate = layer.gate.device();
  good.up = layer.up.device();
  good.down = layer.down.device();
  good.shared_gate = layer.shared_gate.device();
  good.shared_up = layer.shared_up.device();
  good.shared_down = layer.shared_down.device();
  good.x = {reinterpret_cast<const __half*>(memory), nullptr, 256};
  good.ids = reinterpret_cast<const int32_t*>(memory);
  good.weights = memory;
  good.out = memory;
  good.out_stride = 256;
  good.tokens = 3;
  good.experts = 4;
  good.experts_per_token = 2;
  good.scratch = memory;
  const auto refused = [&](auto change) {
    HalfExperts bad = good;
    change(bad);
    EXPECT_EQ(half_experts(bad, nullptr), cudaErrorInvalidValue);
  };
  refused([](HalfExperts& a) { a.tokens = 0; });
  refused([](HalfExperts& a) { a.experts = 5; });
  refused([](HalfExperts& a) { a.experts_per_token = 33; });
  refused([](HalfExperts& a) { a.x.stride = 224; });
  refused([](HalfExperts& a) { a.x.high += 1; });
  refused([](HalfExperts& a) { a.out_stride = 255; });
  refused([](HalfExperts& a) { a.up.type = TensorType::f16; });
  refused([](HalfExperts& a) { a.down.cols = 224; });
  refused([](HalfExperts& a) { a.shared_gate.rows = 255; });
  refused([](HalfExperts& a) { a.scratch = nullptr; });
}

}  // namespace
}  // namespace ds4::cuda
