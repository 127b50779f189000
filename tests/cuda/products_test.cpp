// Repacking, quantising, matrix products and expert products on the device against the CPU formats and
// float64.
#include <algorithm>
#include <cstring>

#include "backend/cuda/gemv/gemv.hpp"
#include "backend/cuda/gemv/quantize.hpp"
#include "backend/cuda/moe/experts.hpp"
#include "product_data.hpp"

namespace ds4::cuda {
namespace {

class Repack : public DeviceTest {};
class Quantize : public DeviceTest {};
class Gemv : public DeviceTest {};
class Experts : public DeviceTest {};

constexpr double bound = 1e-5;  // of the sum of magnitudes

std::string name(TensorType type) {
  return std::string(format::type_name(type));
}

// A row of blocks put together from the planes decodes to the row that was repacked.
TEST_F(Repack, PlanesHoldTheBlocks) {
  struct Part {
    Plane plane;
    size_t at, bytes;
  };
  const auto parts = [](TensorType type) -> std::vector<Part> {
    switch (type) {
      case TensorType::q8_0:
        return {{Plane::scales, 0, 2}, {Plane::quants, 2, 32}};
      case TensorType::mxfp4:
        return {{Plane::scales, 0, 1}, {Plane::quants, 1, 16}};
      case TensorType::q4_k:
        return {{Plane::scales, 0, 16}, {Plane::quants, 16, 128}};
      case TensorType::q2_k:
        return {{Plane::scales, 0, 16}, {Plane::quants, 16, 64}, {Plane::extras, 80, 4}};
      default:
        return {{Plane::extras, 0, 2}, {Plane::quants, 2, 64}};
    }
  };
  std::mt19937 random(1);
  for (const TensorType type : every_type) {
    if (!is_quantised(type)) continue;
    const uint32_t rows = 7, cols = 3 * block_columns(type);
    const TestMatrix matrix(type, rows, cols, random);
    const size_t block_bytes = format::type_traits(type)->block_bytes;
    std::vector<uint8_t> again(matrix.raw().size());
    for (const Part& part : parts(type)) {
      const std::vector<uint8_t> plane = matrix.plane(part.plane);
      ASSERT_EQ(plane.size(), again.size() / block_bytes * part.bytes) << name(type);
      for (size_t block = 0; block < again.size() / block_bytes; ++block) {
        std::memcpy(again.data() + block * block_bytes + part.at, plane.data() + block * part.bytes,
                    part.bytes);
      }
    }
    for (size_t row = 0; row < rows; ++row) {
      std::vector<float> decoded(cols);
      format::decode_row(
          type, reinterpret_cast<const std::byte*>(again.data() + row * format::row_bytes(type, cols)), cols,
          decoded.data());
      EXPECT_EQ(std::memcmp(decoded.data(), matrix.row(row), cols * sizeof(float)), 0) << name(type) << row;
    }
  }
}

TEST_F(Repack, RefusesRunsBeyondTheMatrixAndOtherTypes) {
  const DeviceMatrix matrix = {TensorType::q8_0, 2, 64, nullptr, nullptr, nullptr};
  EXPECT_EQ(repack(TensorType::q8_0, nullptr, 3, 2, matrix, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(repack(TensorType::q8_0, nullptr, 5, 0, matrix, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(repack(TensorType::q4_k, nullptr, 0, 1, matrix, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(repack(TensorType::q8_0, nullptr, 4, 0, matrix, nullptr), cudaSuccess);
}

TEST_F(Quantize, EqualsTheCpu) {
  std::mt19937 random(2);
  for (const uint32_t cols : {32u, 96u, 1024u, 4096u}) {
    const TestActivations x(3, cols, random);
    const DeviceCopy<int8_t> codes(3 * cols);
    const DeviceCopy<float> scales(3 * cols / 32);
    require(quantize({x.f32().data(), codes.data(), scales.data(), 3, cols, cols}, nullptr));
    EXPECT_EQ(codes.read(), x.codes()) << cols;
    EXPECT_EQ(scales.read(), x.scales()) << cols;
  }
}

std::vector<float> run_gemv(const GemvJobs& jobs, int tokens, const DeviceCopy<float>& out) {
  require(cudaMemset(out.data(), 0xff, out.read().size() * sizeof(float)));
  require(gemv(jobs, tokens, nullptr));
  require(cudaDeviceSynchronize());
  return out.read();
}

struct Shape {
  uint32_t rows, cols;
};

// Every format, class of tokens and shape: against float64, and each token's bits against the token alone.
TEST_F(Gemv, EqualsFloat64AndTheTokenAlone) {
  for (const TensorType type : every_type) {
    std::mt19937 random(3);
    const uint32_t block = block_columns(type);
    for (const Shape shape : {Shape{4, 64}, Shape{24, 2048}, Shape{100, 256}, Shape{100, 4096},
                              Shape{1024, 512}, Shape{2052, 1024}, Shape{24, 16384}}) {
      const uint32_t cols = (shape.cols + block - 1) / block * block;
      const uint32_t stride = cols + 256;
      const TestMatrix w(type, shape.rows, cols, random);
      const TestActivations x(max_rows, stride, random);
      const DeviceCopy<float> out(size_t{max_rows} * (shape.rows + 3));
      GemvJobs jobs;
      jobs.count = 1;
      std::vector<std::vector<float>> alone(max_rows);
      for (int t = 0; t < max_rows; ++t) {
        jobs.job[0] = {w.device(), x.device(static_cast<size_t>(t)), out.data(), shape.rows + 3, 0, 0};
        alone[static_cast<size_t>(t)] = run_gemv(jobs, 1, out);
      }
      double worst = 0;
      for (size_t t = 0; t < max_rows; t += 5) {
        for (size_t row = 0; row < shape.rows; row += shape.rows > 200 ? 13 : 1) {
          Product expected;
          expected.add(w, row, x, t);
          const double error = std::abs(alone[t][row] - expected.value) / expected.magnitude;
          worst = std::isnan(error) ? 1e9 : std::max(worst, error);
        }
      }
      EXPECT_LE(worst, bound) << name(type) << " " << shape.rows << "x" << cols;
      jobs.job[0].x = x.device();
      for (const int tokens : {2, 3, 4, 5, 8, 16}) {
        const std::vector<float> batch = run_gemv(jobs, tokens, out);
        for (size_t t = 0; t < max_rows; ++t) {
          const float* got = batch.data() + t * (shape.rows + 3);
          const bool inside = t < static_cast<size_t>(tokens);
          if (inside) {
            EXPECT_EQ(std::memcmp(got, alone[t].data(), shape.rows * sizeof(float)), 0)
                << name(type) << " " << shape.rows << "x" << cols << " token " << t << " of " << tokens;
          }
          const size_t first_untouched = inside ? shape.rows : 0;
          for (size_t i = first_untouched; i < shape.rows + 3; ++i) ASSERT_TRUE(std::isnan(got[i]));
        }
      }
    }
  }
}

// Eight formats in one launch: the bits of each job alone.
TEST_F(Gemv, JobsOfAllFormatsInOneLaunch) {
  std::mt19937 random(4);
  const TestActivations x(max_rows, 1024, random);
  std::vector<TestMatrix> matrices;
  std::vector<DeviceCopy<float>> outs;
  for (size_t i = 0; i < std::size(every_type); ++i) {
    const uint32_t rows = static_cast<uint32_t>(4 + 100 * i);
    matrices.emplace_back(every_type[i], rows, i % 2 ? 1024 : 512, random);
    outs.emplace_back(size_t{max_rows} * rows);
  }
  for (const int tokens : {1, 2, 7, 16}) {
    GemvJobs all;
    all.count = static_cast<int>(matrices.size());
    std::vector<std::vector<float>> alone;
    for (size_t i = 0; i < matrices.size(); ++i) {
      GemvJobs one;
      one.count = 1;
      one.job[0] = {matrices[i].device(), x.device(), outs[i].data(), matrices[i].device().rows, 0, 0};
      all.job[i] = one.job[0];
      alone.push_back(run_gemv(one, tokens, outs[i]));
    }
    for (const DeviceCopy<float>& out : outs) require(cudaMemset(out.data(), 0xff, out.read().size() * 4));
    require(gemv(all, tokens, nullptr));
    for (size_t i = 0; i < matrices.size(); ++i) {
      const std::vector<float> got = outs[i].read();
      EXPECT_EQ(std::memcmp(got.data(), alone[i].data(), got.size() * sizeof(float)), 0)
          << name(every_type[i]) << " " << tokens;
    }
  }
}

TEST_F(Gemv, GroupsReadTheirOwnColumns) {
  std::mt19937 random(5);
  for (const TensorType type : every_type) {
    const uint32_t groups = 4, rows_per_group = 12, cols = 256;
    const TestMatrix w(type, groups * rows_per_group, cols, random);
    const TestActivations x(3, groups * cols, random);
    const DeviceCopy<float> out(size_t{3} * groups * rows_per_group);
    GemvJobs jobs;
    jobs.count = 1;
    jobs.job[0] = {w.device(), x.device(), out.data(), groups * rows_per_group, rows_per_group, cols};
    for (const int tokens : {1, 3}) {
      const std::vector<float> got = run_gemv(jobs, tokens, out);
      for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
        for (size_t row = 0; row < groups * rows_per_group; ++row) {
          Product expected;
          expected.add(w, row, x, t, row / rows_per_group * cols);
          EXPECT_NEAR(got[t * groups * rows_per_group + row], expected.value, bound * expected.magnitude)
              << name(type) << " " << row;
        }
      }
    }
  }
}

TEST_F(Gemv, RefusesShapesItCannotRead) {
  GemvJobs jobs;
  jobs.count = 1;
  jobs.job[0].w = {TensorType::q4_k, 4, 96, nullptr, nullptr, nullptr};
  jobs.job[0].x.stride = 128;
  EXPECT_EQ(gemv(jobs, 1, nullptr), cudaErrorInvalidValue);
  jobs.job[0].w = {TensorType::q8_0, 4, 96, nullptr, nullptr, nullptr};
  EXPECT_EQ(gemv(jobs, 17, nullptr), cudaErrorInvalidValue);
  jobs.job[0].rows_per_group = 2;
  EXPECT_EQ(gemv(jobs, 1, nullptr), cudaErrorInvalidValue);
}

/// A small layer: E experts of F features on d columns, top K, routed types as given, shared Q8_0 unless
/// said.
struct Layer {
  static constexpr uint32_t experts = 5, top = 3, slots = top + 1;
  uint32_t features, width;
  std::mt19937 random{6};
  TestMatrix gate, up, down, shared_gate, shared_up, shared_down;
  TestActivations x;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  Layer(TensorType routed, TensorType down_type, TensorType shared, uint32_t features_of_expert = 256,
        uint32_t width_of_model = 512)
      : features(features_of_expert),
        width(width_of_model),
        gate(routed, experts * features, width, random),
        up(routed, experts * features, width, random),
        down(down_type, experts * width, features, random),
        shared_gate(shared, features, width, random),
        shared_up(shared, features, width, random),
        shared_down(shared, width, features, random),
        x(max_rows, width, random) {
    for (int t = 0; t < max_rows; ++t) {
      std::vector<int32_t> order = {0, 1, 2, 3, 4};
      std::shuffle(order.begin(), order.end(), random);
      std::sort(order.begin(), order.begin() + top);
      ids.insert(ids.end(), order.begin(), order.begin() + top);
      for (uint32_t k = 0; k < top; ++k) weights.push_back(0.1f + 0.01f * static_cast<float>(random() % 90));
    }
  }

  std::vector<float> run_gate_up(uint32_t first, uint32_t tokens) const {
    const DeviceCopy<int32_t> device_ids(ids);
    const DeviceCopy<float> device_weights(weights), mid(size_t{tokens} * slots * features);
    require(experts_gate_up({gate.device(), up.device(), shared_gate.device(), shared_up.device(),
                             x.device(first), device_ids.data() + first * top,
                             device_weights.data() + first * top, mid.data(), tokens, top, features},
                            nullptr));
    return mid.read();
  }
  std::vector<float> run_down(const TestActivations& mid, uint32_t first, uint32_t tokens) const {
    const DeviceCopy<int32_t> device_ids(ids);
    const DeviceCopy<float> out(size_t{tokens} * width);
    require(experts_down({down.device(), shared_down.device(), mid.device(size_t{first} * slots),
                          device_ids.data() + first * top, out.data(), width, tokens, top, width},
                         nullptr));
    return out.read();
  }
};

double swiglu(double gate, double up) {
  const double g = std::min(gate, 10.0), u = std::clamp(up, -10.0, 10.0);
  return g / (1 + std::exp(-g)) * u;
}

void check_gate_up(const Layer& layer, const std::string& what) {
  const std::vector<float> all = layer.run_gate_up(0, max_rows);
  const uint32_t features = layer.features, top = Layer::top, slots = Layer::slots;
  for (size_t t = 0; t < max_rows; t += 3) {
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
  for (const uint32_t tokens : {1u, 2u, 3u, 6u, 11u}) {
    for (uint32_t first = 0; first + tokens <= max_rows; first += 5) {
      const std::vector<float> some = layer.run_gate_up(first, tokens);
      EXPECT_EQ(std::memcmp(some.data(), all.data() + size_t{first} * slots * features, some.size() * 4), 0)
          << what << " " << tokens << " tokens from " << first;
    }
  }
}

void check_down(const Layer& layer, const std::string& what) {
  std::mt19937 random(7);
  const uint32_t features = layer.features, width = layer.width, top = Layer::top, slots = Layer::slots;
  const TestActivations mid(size_t{max_rows} * slots, features, random);
  const std::vector<float> all = layer.run_down(mid, 0, max_rows);
  for (size_t t = 0; t < max_rows; t += 3) {
    for (size_t row = 0; row < width; row += 11) {
      Product expected;
      for (size_t k = 0; k < top; ++k) {
        const size_t expert = static_cast<size_t>(layer.ids[t * top + k]);
        expected.add(layer.down, expert * width + row, mid, t * slots + k);
      }
      expected.add(layer.shared_down, row, mid, t * slots + top);
      ASSERT_NEAR(all[t * width + row], expected.value, bound * expected.magnitude)
          << what << " token " << t << " row " << row;
    }
  }
  for (const uint32_t tokens : {1u, 2u, 3u, 6u, 11u}) {
    for (uint32_t first = 0; first + tokens <= max_rows; first += 5) {
      const std::vector<float> some = layer.run_down(mid, first, tokens);
      EXPECT_EQ(std::memcmp(some.data(), all.data() + size_t{first} * width, some.size() * 4), 0)
          << what << " " << tokens << " tokens from " << first;
    }
  }
}

TEST_F(Experts, EveryRoutedFormat) {
  for (const TensorType type : every_type) {
    const Layer layer(type, type, TensorType::q8_0);
    check_gate_up(layer, name(type));
    check_down(layer, name(type));
  }
}

TEST_F(Experts, EverySharedFormat) {
  for (const TensorType type : every_type) {
    const Layer layer(TensorType::iq2_xxs, TensorType::q2_k, type);
    check_gate_up(layer, "shared " + name(type));
    check_down(layer, "shared " + name(type));
  }
}

// Rows of more steps of 32 chunks than the small layer's.
TEST_F(Experts, LongRows) {
  check_gate_up(Layer(TensorType::iq2_xxs, TensorType::q2_k, TensorType::q8_0, 256, 7168), "7168 columns");
  check_down(Layer(TensorType::iq2_xxs, TensorType::q2_k, TensorType::q8_0, 2304, 512), "2304 columns");
}

TEST_F(Experts, RefusesShapesThatDisagree) {
  const Layer layer(TensorType::q8_0, TensorType::q8_0, TensorType::q8_0);
  ExpertsGateUp args;
  args.gate = layer.gate.device();
  args.up = layer.up.device();
  args.shared_gate = layer.shared_gate.device();
  args.shared_up = layer.shared_up.device();
  args.x = layer.x.device();
  args.tokens = 1;
  args.experts_per_token = Layer::top;
  args.features = layer.features - 1;
  EXPECT_EQ(experts_gate_up(args, nullptr), cudaErrorInvalidValue);
  args.features = layer.features;
  args.tokens = 17;
  EXPECT_EQ(experts_gate_up(args, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace ds4::cuda
