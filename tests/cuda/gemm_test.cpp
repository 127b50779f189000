// Matrix-matrix products and grouped expert products on the device against float64, and the bits of a token
// among other tokens.
#include "backend/cuda/gemm/gemm.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend/cuda/gemm/expert_gemm.hpp"
#include "product_data.hpp"

namespace ds4::cuda {
namespace {

class Gemm : public DeviceTest {};
class ExpertGemm : public DeviceTest {};

constexpr double bound = 1e-5;  // of the sum of magnitudes

std::string name(TensorType type) {
  return std::string(format::type_name(type));
}

std::vector<float> run_gemm(const GemvJobs& jobs, int tokens, const DeviceCopy<float>& out) {
  require(cudaMemset(out.data(), 0xff, out.read().size() * sizeof(float)));
  require(gemm(jobs, tokens, nullptr));
  require(cudaDeviceSynchronize());
  return out.read();
}

struct Shape {
  uint32_t rows, cols;
};

// Every format and shape: against float64; each token's bits against other numbers of tokens and places.
TEST_F(Gemm, EqualsFloat64AndKeepsTheBitsOfAToken) {
  for (const TensorType type : every_type) {
    std::mt19937 random(3);
    const uint32_t block = block_columns(type);
    for (const Shape shape : {Shape{1, 96}, Shape{24, 4096}, Shape{100, 672}, Shape{131, 1024}}) {
      const uint32_t cols = (shape.cols + block - 1) / block * block, stride = cols + 256;
      const uint32_t out_stride = shape.rows + 3;
      const TestMatrix w(type, shape.rows, cols, random);
      const TestActivations x(max_gemm_tokens, stride, random);
      const DeviceCopy<float> out(size_t{max_gemm_tokens} * out_stride);
      GemvJobs jobs;
      jobs.count = 1;
      jobs.job[0] = {w.device(), x.device(), out.data(), out_stride, 0, 0};
      const std::vector<float> all = run_gemm(jobs, max_gemm_tokens, out);
      double worst = 0;
      for (size_t t = 0; t < max_gemm_tokens; t += 17) {
        for (size_t row = 0; row < shape.rows; row += shape.rows > 100 ? 3 : 1) {
          Product expected;
          expected.add(w, row, x, t);
          const double error = std::abs(all[t * out_stride + row] - expected.value) / expected.magnitude;
          worst = std::isnan(error) ? 1e9 : std::max(worst, error);
        }
      }
      EXPECT_LE(worst, bound) << name(type) << " " << shape.rows << "x" << cols;
      const std::pair<int, size_t> runs[] = {{1, 7}, {17, 0}, {17, 100}, {64, 33}, {100, 156}};
      for (const auto& [tokens, first] : runs) {
        jobs.job[0].x = x.device(first);
        const std::vector<float> some = run_gemm(jobs, tokens, out);
        for (size_t t = 0; t < max_gemm_tokens; ++t) {
          const float* got = some.data() + t * out_stride;
          const bool inside = t < static_cast<size_t>(tokens);
          if (inside) {
            EXPECT_EQ(std::memcmp(got, all.data() + (first + t) * out_stride, shape.rows * 4), 0)
                << name(type) << " " << shape.rows << "x" << cols << " token " << t << " of " << tokens;
          }
          for (size_t i = inside ? shape.rows : 0; i < out_stride; ++i) ASSERT_TRUE(std::isnan(got[i]));
        }
      }
    }
  }
}

// Enough rows for tiles of 64 tokens: the bits of the same rows in tiles of 32.
TEST_F(Gemm, WideTilesGiveTheBitsOfNarrowOnes) {
  for (const TensorType type : every_type) {
    std::mt19937 random(4);
    const uint32_t rows = 8200, few = 200, cols = 256;
    const TestMatrix w(type, rows, cols, random);
    const TestActivations x(max_gemm_tokens, cols, random);
    const DeviceCopy<float> out(size_t{max_gemm_tokens} * rows);
    GemvJobs jobs;
    jobs.count = 1;
    jobs.job[0] = {w.device(), x.device(), out.data(), rows, 0, 0};
    const std::vector<float> all = run_gemm(jobs, max_gemm_tokens, out);
    jobs.job[0].w.rows = few;
    const std::vector<float> some = run_gemm(jobs, max_gemm_tokens, out);
    for (size_t t = 0; t < max_gemm_tokens; ++t) {
      EXPECT_EQ(std::memcmp(all.data() + t * rows, some.data() + t * rows, few * 4), 0)
          << name(type) << " token " << t;
    }
    Product expected;
    expected.add(w, rows - 1, x, 255);
    EXPECT_NEAR(all.back(), expected.value, bound * expected.magnitude) << name(type);
  }
}

// Eight formats in one call: the bits of each job alone.
TEST_F(Gemm, JobsOfAllFormatsInOneCall) {
  std::mt19937 random(5);
  const TestActivations x(100, 4096, random);
  std::vector<TestMatrix> matrices;
  std::vector<DeviceCopy<float>> outs;
  for (size_t i = 0; i < std::size(every_type); ++i) {
    const uint32_t rows = static_cast<uint32_t>(5 + 70 * i);
    matrices.emplace_back(every_type[i], rows, i % 2 ? 4096 : 512, random);
    outs.emplace_back(size_t{100} * rows);
  }
  GemvJobs together;
  together.count = static_cast<int>(matrices.size());
  std::vector<std::vector<float>> alone;
  for (size_t i = 0; i < matrices.size(); ++i) {
    GemvJobs one;
    one.count = 1;
    one.job[0] = {matrices[i].device(), x.device(), outs[i].data(), matrices[i].device().rows, 0, 0};
    together.job[i] = one.job[0];
    alone.push_back(run_gemm(one, 100, outs[i]));
  }
  for (const DeviceCopy<float>& out : outs) require(cudaMemset(out.data(), 0xff, out.read().size() * 4));
  require(gemm(together, 100, nullptr));
  for (size_t i = 0; i < matrices.size(); ++i) {
    const std::vector<float> got = outs[i].read();
    EXPECT_EQ(std::memcmp(got.data(), alone[i].data(), got.size() * sizeof(float)), 0) << name(every_type[i]);
  }
}

TEST_F(Gemm, GroupsReadTheirOwnColumns) {
  std::mt19937 random(6);
  for (const TensorType type : every_type) {
    const uint32_t groups = 3, cols = 256, tokens = 40;
    for (const uint32_t rows_per_group : {12u, 68u}) {
      const uint32_t rows = groups * rows_per_group;
      const TestMatrix w(type, rows, cols, random);
      const TestActivations x(tokens, groups * cols, random);
      const DeviceCopy<float> out(size_t{tokens} * rows);
      GemvJobs jobs;
      jobs.count = 1;
      jobs.job[0] = {w.device(), x.device(), out.data(), rows, rows_per_group, cols};
      const std::vector<float> got = run_gemm(jobs, tokens, out);
      for (size_t t = 0; t < tokens; t += 13) {
        for (size_t row = 0; row < rows; ++row) {
          Product expected;
          expected.add(w, row, x, t, row / rows_per_group * cols);
          ASSERT_NEAR(got[t * rows + row], expected.value, bound * expected.magnitude)
              << name(type) << " " << row;
        }
      }
    }
  }
}

TEST_F(Gemm, RefusesShapesItCannotRead) {
  GemvJobs jobs;
  jobs.count = 1;
  jobs.job[0].w = {TensorType::q4_k, 4, 96, nullptr, nullptr, nullptr};
  jobs.job[0].x.stride = 128;
  EXPECT_EQ(gemm(jobs, 17, nullptr), cudaErrorInvalidValue);
  jobs.job[0].w = {TensorType::q8_0, 4, 96, nullptr, nullptr, nullptr};
  EXPECT_EQ(gemm(jobs, 257, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(gemm(jobs, 0, nullptr), cudaErrorInvalidValue);
  jobs.job[0].group_cols = 16;
  EXPECT_EQ(gemm(jobs, 17, nullptr), cudaErrorInvalidValue);
}

/// How tokens choose their experts.
enum class Choice { random, same, repeated };

/// A small layer: E experts of F features on d columns, top K.
struct Layer {
  static constexpr uint32_t experts = 7, features = 256, width = 1024, outputs = 1000, top = 3,
                            slots = top + 1;
  static constexpr uint32_t tokens = 100;
  std::mt19937 random{7};
  TestMatrix gate, up, down, shared_gate, shared_up, shared_down;
  TestActivations x;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  Layer(TensorType routed, TensorType down_type, TensorType shared, Choice choice)
      : gate(routed, experts * features, width, random),
        up(routed, experts * features, width, random),
        down(down_type, experts * outputs, features, random),
        shared_gate(shared, features, width, random),
        shared_up(shared, features, width, random),
        shared_down(shared, outputs, features, random),
        x(tokens, width, random) {
    for (uint32_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> order = {0, 1, 2, 4, 5, 6};  // nobody takes expert 3
      if (choice == Choice::random) std::shuffle(order.begin(), order.end(), random);
      if (choice == Choice::repeated && t % 5 == 0) order[1] = order[0];
      std::sort(order.begin(), order.begin() + top);
      ids.insert(ids.end(), order.begin(), order.begin() + top);
      for (uint32_t k = 0; k < top; ++k) weights.push_back(0.1f + 0.01f * static_cast<float>(random() % 90));
    }
  }

  std::vector<float> run_gate_up(uint32_t first, uint32_t count) const {
    const DeviceCopy<int32_t> device_ids(ids);
    const DeviceCopy<float> device_weights(weights), mid(size_t{count} * slots * features);
    const DeviceCopy<uint8_t> scratch(expert_groups_bytes(count, top, experts));
    const ExpertGroups groups = {device_ids.data() + first * top, count, top, experts, scratch.data()};
    require(expert_groups(groups, nullptr));
    require(expert_gemm_gate_up(
        {gate.device(), up.device(), shared_gate.device(), shared_up.device(), x.device(first), groups.ids,
         device_weights.data() + first * top, mid.data(), count, top, features},
        groups, nullptr));
    return mid.read();
  }
  std::vector<float> run_down(const TestActivations& mid, uint32_t first, uint32_t count) const {
    const DeviceCopy<int32_t> device_ids(ids);
    const DeviceCopy<float> out(size_t{count} * outputs);
    const DeviceCopy<uint8_t> scratch(expert_groups_bytes(count, top, experts));
    const DeviceCopy<uint8_t> products(expert_products_bytes(count, top, outputs));
    const ExpertGroups groups = {device_ids.data() + first * top, count, top, experts, scratch.data()};
    require(expert_groups(groups, nullptr));
    require(expert_gemm_down({down.device(), shared_down.device(), mid.device(size_t{first} * slots),
                              groups.ids, out.data(), outputs, count, top, outputs},
                             groups, reinterpret_cast<float*>(products.data()), nullptr));
    return out.read();
  }
};

constexpr std::pair<uint32_t, uint32_t> parts_of_pass[] = {{0, 1}, {3, 17}, {31, 64}};

double swiglu(double gate, double up) {
  const double g = std::min(gate, 10.0), u = std::clamp(up, -10.0, 10.0);
  return g / (1 + std::exp(-g)) * u;
}

void check_gate_up(const Layer& layer, const std::string& what) {
  const std::vector<float> all = layer.run_gate_up(0, Layer::tokens);
  const uint32_t features = Layer::features, top = Layer::top, slots = Layer::slots;
  for (size_t t = 0; t < Layer::tokens; t += 9) {
    for (size_t k = 0; k < slots; ++k) {
      const bool shared = k == top;
      const size_t expert = shared ? 0 : static_cast<size_t>(layer.ids[t * top + k]);
      const double weight = shared ? 1.0 : double{layer.weights[t * top + k]};
      for (size_t i = 0; i < features; i += 7) {
        Product g, u;
        g.add(shared ? layer.shared_gate : layer.gate, expert * features + i, layer.x, t);
        u.add(shared ? layer.shared_up : layer.up, expert * features + i, layer.x, t);
        // |d silu / d g| <= 1.1 and |silu| <= 10, |u| <= 10.
        const double tolerance = weight * 11 * bound * (g.magnitude + u.magnitude) + 1e-6;
        ASSERT_NEAR(all[(t * slots + k) * features + i], weight * swiglu(g.value, u.value), tolerance)
            << what << " token " << t << " slot " << k << " row " << i;
      }
    }
  }
  for (const float v : all) ASSERT_FALSE(std::isnan(v)) << what;
  for (const auto& [first, count] : parts_of_pass) {
    const std::vector<float> some = layer.run_gate_up(first, count);
    EXPECT_EQ(std::memcmp(some.data(), all.data() + size_t{first} * slots * features, some.size() * 4), 0)
        << what << " " << count << " tokens from " << first;
  }
}

void check_down(const Layer& layer, const std::string& what) {
  std::mt19937 random(8);
  const uint32_t features = Layer::features, outputs = Layer::outputs, top = Layer::top, slots = Layer::slots;
  const TestActivations mid(size_t{Layer::tokens} * slots, features, random);
  const std::vector<float> all = layer.run_down(mid, 0, Layer::tokens);
  for (size_t t = 0; t < Layer::tokens; t += 9) {
    for (size_t row = 0; row < outputs; row += 11) {
      Product expected;
      for (size_t k = 0; k < top; ++k) {
        const size_t expert = static_cast<size_t>(layer.ids[t * top + k]);
        expected.add(layer.down, expert * outputs + row, mid, t * slots + k);
      }
      expected.add(layer.shared_down, row, mid, t * slots + top);
      ASSERT_NEAR(all[t * outputs + row], expected.value, bound * expected.magnitude)
          << what << " token " << t << " row " << row;
    }
  }
  for (const auto& [first, count] : parts_of_pass) {
    const std::vector<float> some = layer.run_down(mid, first, count);
    EXPECT_EQ(std::memcmp(some.data(), all.data() + size_t{first} * outputs, some.size() * 4), 0)
        << what << " " << count << " tokens from " << first;
  }
}

TEST_F(ExpertGemm, EveryRoutedFormat) {
  for (const TensorType type : every_type) {
    const Layer layer(type, type, TensorType::q8_0, Choice::random);
    check_gate_up(layer, name(type));
    check_down(layer, name(type));
  }
}

TEST_F(ExpertGemm, EverySharedFormat) {
  for (const TensorType type : every_type) {
    const Layer layer(TensorType::iq2_xxs, TensorType::q2_k, type, Choice::random);
    check_gate_up(layer, "shared " + name(type));
    check_down(layer, "shared " + name(type));
  }
}

TEST_F(ExpertGemm, AllTokensOnTheSameExpertsAndRepeatedExperts) {
  for (const Choice choice : {Choice::same, Choice::repeated}) {
    const Layer layer(TensorType::iq2_xxs, TensorType::q2_k, TensorType::q8_0, choice);
    const std::string what = choice == Choice::same ? "same" : "repeated";
    check_gate_up(layer, what);
    check_down(layer, what);
  }
}

// 256 tokens of 6 of 256 experts: every slot once, by expert, then token, in tiles of at most 32.
TEST_F(ExpertGemm, GroupsHoldEverySlotInOrder) {
  constexpr uint32_t tokens = 256, top = 6, experts = 256;
  std::mt19937 random(9);
  std::vector<int32_t> ids, order(experts);
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t t = 0; t < tokens; ++t) {
    std::shuffle(order.begin(), order.end(), random);
    if (t % 2 == 0) *std::find(order.begin(), order.end(), 200) = order[0], order[0] = 200;
    std::sort(order.begin(), order.begin() + top);
    ids.insert(ids.end(), order.begin(), order.begin() + top);
  }
  const DeviceCopy<int32_t> device_ids(ids);
  const DeviceCopy<uint8_t> scratch(expert_groups_bytes(tokens, top, experts));
  require(expert_groups({device_ids.data(), tokens, top, experts, scratch.data()}, nullptr));
  const std::vector<uint8_t> bytes = scratch.read();
  std::vector<uint32_t> words(bytes.size() / 4);
  std::memcpy(words.data(), bytes.data(), words.size() * 4);
  const uint32_t* tiles = words.data() + 4;
  const uint32_t* slots = words.data() + words.size() - tokens * top;
  std::vector<std::pair<uint32_t, uint32_t>> expected;  // expert, slot
  for (uint32_t i = 0; i < tokens * top; ++i) {
    expected.emplace_back(static_cast<uint32_t>(ids[i]), i / top * (top + 1) + i % top);
  }
  std::sort(expected.begin(), expected.end());
  size_t at = 0;
  for (uint32_t tile = 0; tile < words[0]; ++tile) {
    const uint32_t expert = tiles[3 * tile], first = tiles[3 * tile + 1], count = tiles[3 * tile + 2];
    ASSERT_EQ(first, at);
    ASSERT_GE(count, 1u);
    ASSERT_LE(count, 32u);
    for (uint32_t i = 0; i < count; ++i, ++at) {
      ASSERT_LT(at, expected.size());
      EXPECT_EQ(std::make_pair(expert, slots[at]), expected[at]) << at;
    }
  }
  EXPECT_EQ(at, expected.size());
}

TEST_F(ExpertGemm, RefusesShapesThatDisagree) {
  const Layer layer(TensorType::q8_0, TensorType::q8_0, TensorType::q8_0, Choice::random);
  const DeviceCopy<uint8_t> scratch(expert_groups_bytes(17, Layer::top, Layer::experts));
  const DeviceCopy<int32_t> ids(layer.ids);
  ExpertGroups groups = {ids.data(), 17, Layer::top, Layer::experts, scratch.data()};
  ExpertsGateUp args;
  args.gate = layer.gate.device();
  args.up = layer.up.device();
  args.shared_gate = layer.shared_gate.device();
  args.shared_up = layer.shared_up.device();
  args.x = layer.x.device();
  args.ids = ids.data();
  args.tokens = 17;
  args.experts_per_token = Layer::top;
  args.features = Layer::features - 1;
  EXPECT_EQ(expert_gemm_gate_up(args, groups, nullptr), cudaErrorInvalidValue);
  args.features = Layer::features;
  args.tokens = 18;
  EXPECT_EQ(expert_gemm_gate_up(args, groups, nullptr), cudaErrorInvalidValue);
  groups.tokens = max_gemm_tokens + 1;
  EXPECT_EQ(expert_groups(groups, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace ds4::cuda
