// F16 products of prefill on the device against float64 in every format, both kernels, and the bits of a
// token among other tokens, jobs and tiles.
#include "backend/cuda/gemm/half_gemm.hpp"

#include <algorithm>
#include <cstring>

#include "product_data.hpp"

namespace ds4::cuda {
namespace {

// Of the sum of magnitudes: F32 sums of exact products; with low planes also 2^-22 of each factor.
constexpr double bound = 3e-6;
// Results rounded to F16.
constexpr double half_bound = bound + 1.0 / 2048;

constexpr PrefillKernel kernels[] = {PrefillKernel::best, PrefillKernel::portable};

std::string name(PrefillKernel kernel) {
  return kernel == PrefillKernel::best ? "best" : "portable";
}
std::string name(TensorType type) {
  return std::string(format::type_name(type));
}

double round_to_half(double value) {
  return format::f16_to_f32(format::f32_to_f16(static_cast<float>(value)));
}

/// Activations as two F16 planes on the device. Memory behind the last row is NaN.
class HalfInputs {
 public:
  HalfInputs(size_t rows, uint32_t stride, std::mt19937& random) : stride_(stride) {
    std::normal_distribution<float> normal;
    std::vector<uint16_t> high(rows * stride), low(rows * stride);
    for (size_t i = 0; i < high.size(); ++i) {
      const float value = normal(random);
      high[i] = format::f32_to_f16(value);
      low[i] = format::f32_to_f16(value - format::f16_to_f32(high[i]));
    }
    high_ = std::make_unique<DeviceCopy<uint16_t>>(high);
    low_ = std::make_unique<DeviceCopy<uint16_t>>(low);
    for (size_t i = 0; i < high.size(); ++i) {
      values_[0].push_back(format::f16_to_f32(high[i]));
      values_[1].push_back(format::f16_to_f32(low[i]));
    }
  }
  HalfActivations device(bool precise, size_t first = 0) const {
    const auto at = [&](const DeviceCopy<uint16_t>& plane) {
      return reinterpret_cast<const __half*>(plane.data()) + first * stride_;
    };
    return {at(*high_), precise ? at(*low_) : nullptr, stride_};
  }
  double value(bool precise, size_t row, size_t column) const {
    const size_t i = row * stride_ + column;
    return double{values_[0][i]} + (precise ? double{values_[1][i]} : 0.0);
  }

 private:
  uint32_t stride_;
  std::unique_ptr<DeviceCopy<uint16_t>> high_, low_;
  std::vector<float> values_[2];
};

/// Error of a result in units of the sum of magnitudes. Weights count as F16, or exactly when precise.
double relative_error(double got, const TestMatrix& w, size_t w_row, const HalfInputs& x, bool precise,
                      size_t x_row, size_t column = 0) {
  double value = 0, magnitude = 1e-30;
  for (size_t i = 0; i < w.device().cols; ++i) {
    const double weight = w.row(w_row)[i];
    const double term = (precise ? weight : round_to_half(weight)) * x.value(precise, x_row, column + i);
    value += term;
    magnitude += std::abs(term);
  }
  const double error = std::abs(got - value) / magnitude;
  return std::isnan(error) ? 1e9 : error;
}

std::vector<float> to_floats(const std::vector<uint16_t>& halves) {
  std::vector<float> values;
  for (const uint16_t h : halves) values.push_back(format::f16_to_f32(h));
  return values;
}

class HalfGemm : public DeviceTest {
 protected:
  static void run(const std::vector<HalfGemmJob>& jobs, int tokens, PrefillKernel kernel) {
    const DeviceCopy<uint8_t> scratch(half_gemm_scratch_bytes(jobs) + 256);
    require(half_gemm(jobs, tokens, scratch.data(), nullptr, kernel));
    require(cudaDeviceSynchronize());
  }
  /// One job into fresh memory of `rows_of_memory` tokens.
  static std::vector<float> run_one(HalfGemmJob job, int tokens, PrefillKernel kernel, size_t rows_of_memory,
                                    bool half_out = false) {
    if (half_out) {
      const DeviceCopy<uint16_t> out(rows_of_memory * job.out_stride);
      job.out_half = reinterpret_cast<__half*>(out.data());
      run({job}, tokens, kernel);
      return to_floats(out.read());
    }
    const DeviceCopy<float> out(rows_of_memory * job.out_stride);
    job.out = out.data();
    run({job}, tokens, kernel);
    return out.read();
  }
};

struct Shape {
  uint32_t rows, cols, out_padding;
};

// Every format, kernel and precision; shapes with edges in every direction.
TEST_F(HalfGemm, EqualsFloat64) {
  constexpr size_t tokens = 150;
  double worst_of_all = 0;
  for (const TensorType type : every_type) {
    std::mt19937 random(3);
    const uint32_t block = block_columns(type);
    for (const Shape shape : {Shape{1, 32, 0}, Shape{24, 2048, 0}, Shape{131, 672, 5}, Shape{520, 160, 8}}) {
      const uint32_t cols = (shape.cols + block - 1) / block * block, stride = cols + 32;
      const TestMatrix w(type, shape.rows, cols, random);
      const HalfInputs x(tokens, stride, random);
      for (const PrefillKernel kernel : kernels) {
        for (const bool precise : {false, true}) {
          HalfGemmJob job;
          job.w = w.device();
          job.x = x.device(precise);
          job.out_stride = shape.rows + shape.out_padding;
          const std::vector<float> got = run_one(job, tokens, kernel, tokens + 2);
          double worst = 0;
          for (size_t t = 0; t < tokens; t += t % 2 ? 36 : 37) {
            for (size_t row = 0; row < shape.rows; row += shape.rows > 100 ? 3 : 1) {
              worst = std::max(worst, relative_error(got[t * job.out_stride + row], w, row, x, precise, t));
            }
          }
          EXPECT_LE(worst, bound) << name(type) << " " << shape.rows << "x" << cols << " " << name(kernel)
                                  << (precise ? " precise" : "");
          worst_of_all = std::max(worst_of_all, worst);
          for (size_t i = 0; i < got.size(); ++i) {
            const bool inside = i / job.out_stride < tokens && i % job.out_stride < shape.rows;
            ASSERT_EQ(std::isnan(got[i]), !inside) << name(type) << " " << name(kernel) << " " << i;
          }
        }
      }
    }
  }
  std::printf("worst error %.2g of the sum of magnitudes\n", worst_of_all);
}

// Long sums; the three tile widths of the warpgroup kernel are chosen by the number of tokens.
TEST_F(HalfGemm, ATokenKeepsItsBits) {
  constexpr size_t most = 1300;
  std::mt19937 random(4);
  const Shape shape = {2100, 1056, 4};
  const TestMatrix w(TensorType::q8_0, shape.rows, shape.cols, random);
  const HalfInputs x(most, shape.cols, random);
  for (const PrefillKernel kernel : kernels) {
    for (const bool half_out : {false, true}) {
      HalfGemmJob job;
      job.w = w.device();
      job.x = x.device(false);
      job.out_stride = shape.rows + shape.out_padding;
      const std::vector<float> all = run_one(job, most, kernel, most, half_out);
      for (const size_t row : {size_t{0}, size_t{77}, size_t{1024}, size_t{2099}}) {
        for (const size_t t : {size_t{0}, size_t{200}, size_t{1299}}) {
          EXPECT_LE(relative_error(all[t * job.out_stride + row], w, row, x, false, t),
                    half_out ? half_bound : bound);
        }
      }
      const std::pair<int, size_t> runs[] = {{1, 7}, {17, 0}, {63, 100}, {129, 33}, {300, 1000}, {700, 1}};
      for (const auto& [tokens, first] : runs) {
        job.x = x.device(false, first);
        const size_t count = static_cast<size_t>(tokens);
        const std::vector<float> some = run_one(job, tokens, kernel, count, half_out);
        for (size_t t = 0; t < count; ++t) {
          ASSERT_EQ(std::memcmp(some.data() + t * job.out_stride, all.data() + (first + t) * job.out_stride,
                                shape.rows * 4),
                    0)
              << name(kernel) << " token " << t << " of " << tokens << (half_out ? " half" : "");
        }
      }
    }
  }
}

// Ten jobs of all formats and several widths in one call: the bits of each alone.
TEST_F(HalfGemm, ManyJobsInOneCall) {
  constexpr size_t tokens = 270;
  std::mt19937 random(5);
  const HalfInputs x(tokens, 512, random);
  const uint32_t rows[] = {64, 1024, 24, 256, 1, 300, 512, 40, 8, 700};
  std::vector<TestMatrix> matrices;
  for (size_t i = 0; i < std::size(rows); ++i) {
    matrices.emplace_back(every_type[i % std::size(every_type)], rows[i], i % 3 == 0 ? 512 : 256, random);
  }
  for (const PrefillKernel kernel : kernels) {
    std::vector<DeviceCopy<float>> outs;
    std::vector<HalfGemmJob> jobs;
    std::vector<std::vector<float>> alone;
    for (size_t i = 0; i < matrices.size(); ++i) {
      HalfGemmJob job;
      job.w = matrices[i].device();
      job.x = x.device(i % 4 == 1);
      job.out_stride = rows[i];
      alone.push_back(run_one(job, tokens, kernel, tokens));
      outs.emplace_back(tokens * rows[i]);
      job.out = outs.back().data();
      jobs.push_back(job);
    }
    run(jobs, tokens, kernel);
    for (size_t i = 0; i < jobs.size(); ++i) {
      const std::vector<float> got = outs[i].read();
      EXPECT_EQ(std::memcmp(got.data(), alone[i].data(), got.size() * sizeof(float)), 0)
          << name(kernel) << " job " << i;
      EXPECT_LE(relative_error(got.back(), matrices[i], rows[i] - 1, x, i % 4 == 1, tokens - 1), bound);
    }
  }
}

TEST_F(HalfGemm, GroupsReadTheirOwnColumns) {
  std::mt19937 random(6);
  for (const uint32_t rows_per_group : {64u, 128u, 200u, 384u}) {
    const uint32_t groups = 3, cols = 160, group_cols = 192, tokens = 140;
    const uint32_t rows = groups * rows_per_group - 8;
    const TestMatrix w(TensorType::q8_0, rows, cols, random);
    const HalfInputs x(tokens, groups * group_cols, random);
    for (const PrefillKernel kernel : kernels) {
      for (const bool half_out : {false, true}) {
        HalfGemmJob job;
        job.w = w.device();
        job.x = x.device(false);
        job.out_stride = rows;
        job.rows_per_group = rows_per_group;
        job.group_cols = group_cols;
        const std::vector<float> got = run_one(job, tokens, kernel, tokens, half_out);
        for (size_t t = 0; t < tokens; t += 13) {
          for (size_t row = 0; row < rows; ++row) {
            ASSERT_LE(
                relative_error(got[t * rows + row], w, row, x, false, t, row / rows_per_group * group_cols),
                half_out ? half_bound : bound)
                << name(kernel) << " " << rows_per_group << " row " << row << " token " << t;
          }
        }
      }
    }
  }
}

// Sums beyond F16: results clamp; a NaN among the activations of a token stays in that token.
TEST_F(HalfGemm, HalfResultsClampAndNanStays) {
  constexpr size_t rows = 72, cols = 64, tokens = 5;
  std::vector<float> weights(rows * cols, 1e6f);  // beyond F16 themselves
  for (size_t i = 0; i < cols; ++i) weights[i] = -2.0f;
  std::vector<uint16_t> inputs(tokens * cols, format::f32_to_f16(100.0f));
  inputs[2 * cols + 3] = 0x7e00;
  const DeviceCopy<float> w(weights);
  const DeviceCopy<uint16_t> x(inputs);
  for (const PrefillKernel kernel : kernels) {
    for (const uint32_t stride : {72u, 75u}) {
      HalfGemmJob job;
      job.w = {TensorType::f32, rows, cols, reinterpret_cast<const uint8_t*>(w.data()), nullptr, nullptr};
      job.x = {reinterpret_cast<const __half*>(x.data()), nullptr, cols};
      job.out_stride = stride;
      const std::vector<float> half_out = run_one(job, tokens, kernel, tokens, true);
      const std::vector<float> out = run_one(job, tokens, kernel, tokens, false);
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t row = 0; row < rows; ++row) {
          const float got_half = half_out[t * stride + row], got = out[t * stride + row];
          if (t == 2) {
            EXPECT_TRUE(std::isnan(got) && std::isnan(got_half));
          } else {
            EXPECT_EQ(got, row == 0 ? -12800.0f : 65504.0f * 6400.0f);
            EXPECT_EQ(got_half, row == 0 ? -12800.0f : 65504.0f);
          }
        }
      }
    }
  }
}

TEST_F(HalfGemm, RefusesShapesItCannotRead) {
  const DeviceCopy<uint16_t> memory(4096);
  const DeviceCopy<float> out(4096);
  HalfGemmJob good;
  good.w = {TensorType::f16, 4, 64, reinterpret_cast<const uint8_t*>(memory.data()), nullptr, nullptr};
  good.x = {reinterpret_cast<const __half*>(memory.data()), nullptr, 64};
  good.out = out.data();
  good.out_stride = 4;
  const auto status = [&](const HalfGemmJob& job, int tokens = 17) {
    return half_gemm({&job, 1}, tokens, nullptr, nullptr);
  };
  EXPECT_EQ(status(good), cudaSuccess);
  EXPECT_EQ(status(good, 0), cudaSuccess);
  EXPECT_EQ(status(good, -1), cudaErrorInvalidValue);
  HalfGemmJob job = good;
  job.w.cols = 48;
  EXPECT_EQ(status(job), cudaErrorInvalidValue);
  job = good;
  job.w.cols = 128;
  EXPECT_EQ(status(job), cudaErrorInvalidValue);  // beyond the stride
  job = good;
  job.x.high += 4;
  EXPECT_EQ(status(job), cudaErrorInvalidValue);
  job = good;
  job.out_half = reinterpret_cast<__half*>(out.data());
  EXPECT_EQ(status(job), cudaErrorInvalidValue);
  job = good;
  job.rows_per_group = 2;
  job.group_cols = 32;
  EXPECT_EQ(status(job), cudaErrorInvalidValue);  // the last group ends beyond the stride
  job = good;
  job.w.type = TensorType::bf16;
  EXPECT_EQ(status(job), cudaErrorInvalidValue);  // needs scratch
  require(cudaDeviceSynchronize());
}

}  // namespace
}  // namespace ds4::cuda
