// Choosing a token on the device: the summary of logits, and random choices equal to the CPU's.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/sampling/argmax.hpp"
#include "backend/cuda/sampling/device_draw.hpp"
#include "random_sequences.hpp"
#include "sampling/draw.hpp"

namespace ds4::cuda {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float largest_float = std::numeric_limits<float>::max();

class ArgmaxTest : public DeviceTest {};

TEST_F(ArgmaxTest, FirstOfTheLargest) {
  std::mt19937 random(9);
  for (uint32_t vocabulary : {1u, 31u, 2048u, 2049u, 129280u, 1u << 20}) {
    std::vector<std::vector<float>> rows;
    for (int i = 0; i < 9; ++i) rows.push_back(random_values(vocabulary, 3.0f, random));
    rows.push_back(std::vector<float>(vocabulary, -1.0f));  // all equal: the first
    rows.push_back(std::vector<float>(vocabulary, -infinity));
    rows.push_back(std::vector<float>(vocabulary, nan));  // nothing else: the first, flagged
    for (float& x : rows[0]) x = std::floor(x);           // many equal maxima
    for (size_t i = 0; i < vocabulary; i += 3) rows[1][i] = nan;
    rows[2][vocabulary / 2] = nan;
    rows[2][vocabulary - 1] = infinity;
    rows[3].assign(vocabulary, -0.0f);
    rows[3][vocabulary - 1] = 0.0f;  // equal to the first
    std::vector<float> logits;
    for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    const DeviceCopy<float> device(logits);
    const auto count = static_cast<uint32_t>(rows.size());
    const DeviceCopy<sampling::LogitSummary> summaries(count);
    const DeviceCopy<float> copies(logits.size());
    const DeviceCopy<uint64_t> scratch(argmax_scratch_bytes(count, vocabulary) / 8);
    require(prepare_argmax_scratch(scratch.data(), nullptr));
    ArgmaxArguments arguments{device.data(), count, vocabulary, {}, scratch.data(), summaries.data()};
    for (size_t r = 0; r < rows.size(); ++r) arguments.copies[r] = copies.data() + r * vocabulary;
    for (int call = 0; call < 2; ++call) require(argmax(arguments, nullptr));  // the scratch serves again
    require(cudaDeviceSynchronize());
    const auto got = summaries.read();
    EXPECT_EQ(std::memcmp(copies.read().data(), logits.data(), logits.size() * sizeof(float)), 0);
    for (size_t r = 0; r < rows.size(); ++r) {
      const sampling::LogitSummary expected = sampling::summarize(rows[r]);
      EXPECT_EQ(got[r].best, expected.best) << "row " << r << " of " << vocabulary;
      EXPECT_EQ(got[r].maximum, expected.maximum) << "row " << r << " of " << vocabulary;
      EXPECT_EQ(got[r].has_nan, expected.has_nan) << "row " << r << " of " << vocabulary;
    }
  }
}

class DrawTest : public DeviceTest {};

/// One row of logits on the device, from which tokens are drawn there and on the CPU.
class Row {
 public:
  explicit Row(std::vector<float> logits)
      : logits_(std::move(logits)),
        device_(logits_),
        scratch_(draw_scratch_bytes(size()) / sizeof(uint64_t) + 1),
        token_(1),
        summary_(sampling::summarize(logits_)) {
    require(prepare_draw_scratch(scratch_.data(), size(), nullptr));
  }

  uint32_t size() const { return static_cast<uint32_t>(logits_.size()); }
  Token on_cpu(const SamplingParams& params, float uniform) const {
    return sampling::draw(logits_, params, uniform);
  }
  Token on_device(const SamplingParams& params, float uniform) const {
    const sampling::DrawRule rule = sampling::normalized(params);
    DrawArguments arguments;
    arguments.logits = device_.data();
    arguments.vocabulary = size();
    arguments.softmax = sampling::make_softmax(summary_.maximum, rule);
    arguments.top_k = rule.top_k;
    arguments.top_p = rule.top_p;
    arguments.uniform = uniform;
    arguments.scratch = scratch_.data();
    arguments.token = token_.data();
    require(draw(arguments, nullptr));
    return token_.read()[0];
  }

 private:
  std::vector<float> logits_;
  DeviceCopy<float> device_;
  DeviceCopy<uint64_t> scratch_;
  DeviceCopy<int32_t> token_;
  sampling::LogitSummary summary_;
};

std::string text(const SamplingParams& p) {
  char buffer[128];
  std::snprintf(buffer, sizeof(buffer), "temperature %g, top-k %d, top-p %g, min-p %g",
                static_cast<double>(p.temperature), p.top_k, static_cast<double>(p.top_p),
                static_cast<double>(p.min_p));
  return buffer;
}

const std::vector<SamplingParams>& all_params() {
  static const std::vector<SamplingParams> list = [] {
    std::vector<SamplingParams> params;
    for (const float temperature : {1.0f, 0.7f, 0.1f, 1e-6f, 1e-40f, 2.0f, 50.0f, infinity}) {
      for (const int top_k : {0, 1, 2, 40, 1000, 5000}) {
        for (const float top_p : {1.0f, 0.95f, 0.5f, 1e-3f}) {
          for (const float min_p : {0.0f, 0.05f, 1.0f}) params.push_back({temperature, top_k, top_p, min_p});
        }
      }
    }
    return params;
  }();
  return list;
}

struct Compared {
  size_t draws = 0, undecided = 0;
};

/// Draws with every `stride`-th of the parameters, the first and last random number, and one between.
Compared compare(const std::string& what, const Row& row, size_t stride, std::mt19937& random) {
  Compared result;
  for (size_t i = random() % stride; i < all_params().size(); i += stride) {
    const SamplingParams& params = all_params()[i];
    for (const uint32_t numerator : {0u, (1u << 24) - 1, static_cast<uint32_t>(random() >> 8)}) {
      const float uniform = static_cast<float>(numerator) / 16777216.0f;
      const Token token = row.on_device(params, uniform);
      ++result.draws;
      if (token == draw_undecided) {
        ++result.undecided;
      } else {
        EXPECT_EQ(token, row.on_cpu(params, uniform))
            << what << ", " << row.size() << " logits, " << text(params) << ", uniform " << uniform;
      }
    }
  }
  return result;
}

/// Bell-shaped like the logits of a model, with a few favourites.
std::vector<float> model_like(uint32_t count, std::mt19937& random) {
  std::vector<float> logits = random_values(count, 3.0f, random);
  for (uint32_t i = 0; i < std::min(count, 60u); ++i) {
    logits[random() % count] = 8 + static_cast<float>(random() % 10000) / 1000.0f;
  }
  return logits;
}

TEST_F(DrawTest, EqualsTheCpuOnModelLikeLogits) {
  std::mt19937 random(11);
  Compared sum;
  for (int round = 0; round < 24; ++round) {
    const Row row(model_like(129280, random));
    const Compared part = compare("model-like", row, 7, random);
    sum.draws += part.draws;
    sum.undecided += part.undecided;
  }
  std::printf("%zu draws, %zu undecided\n", sum.draws, sum.undecided);
  EXPECT_LT(sum.undecided, sum.draws / 8);  // flat distributions only
}

TEST_F(DrawTest, EqualsTheCpuOnOddSizesAndShapes) {
  std::mt19937 random(12);
  const std::vector<std::pair<std::string, std::function<float(uint32_t, float)>>> shapes{
      {"as they are", [](uint32_t, float x) { return x; }},
      {"ties", [](uint32_t, float x) { return std::floor(x); }},
      {"all equal", [](uint32_t, float) { return 2.5f; }},
      {"both zeros", [](uint32_t i, float) { return i % 2 == 0 ? 0.0f : -0.0f; }},
      {"masked", [](uint32_t i, float x) { return i % 3 == 0 ? x : -infinity; }},
      {"not finite", [](uint32_t i, float x) { return i % 4 == 1   ? nan
                                                      : i % 4 == 2 ? infinity
                                                                   : x; }},
      {"huge", [](uint32_t i, float x) { return i % 7 == 0 ? -largest_float : x * 1e37f; }},
      {"from end to end", [](uint32_t i, float) { return i % 2 == 0 ? largest_float : -largest_float; }},
      {"tiny", [](uint32_t, float x) { return x * 1e-41f; }},
      {"large and close", [](uint32_t, float x) { return 1e6f + x; }},
  };
  Compared sum;
  for (const uint32_t size : {1u, 2u, 3u, 31u, 255u, 256u, 257u, 1023u, 4099u, 129281u, 300001u}) {
    const std::vector<float> values = random_values(size, 3.0f, random);
    for (const auto& [name, shape] : shapes) {
      std::vector<float> logits(size);
      for (uint32_t i = 0; i < size; ++i) logits[i] = shape(i, values[i]);
      const Compared part = compare(name, Row(logits), size > 100000 ? 41 : 13, random);
      sum.draws += part.draws;
      sum.undecided += part.undecided;
      if (size <= draw_candidates) {
        EXPECT_EQ(part.undecided, 0u) << name << ", " << size;
      }
    }
  }
  std::printf("%zu draws, %zu undecided\n", sum.draws, sum.undecided);
}

// What people set: none of these may need the CPU.
TEST_F(DrawTest, UsualParametersAreDecidedOnTheDevice) {
  std::mt19937 random(13);
  const SamplingParams usual[] = {{},
                                  {.min_p = 0},
                                  {.top_p = 0.95f},
                                  {.top_p = 0.95f, .min_p = 0},
                                  {.temperature = 0.6f, .top_p = 0.95f, .min_p = 0},
                                  {.top_k = 40, .top_p = 0.95f},
                                  {.top_k = 1000, .min_p = 0}};
  for (int round = 0; round < 4; ++round) {
    const Row row(model_like(129280, random));
    for (const SamplingParams& params : usual) {
      for (int i = 0; i < 25; ++i) {
        const float uniform = static_cast<float>(random() >> 8) / 16777216.0f;
        EXPECT_EQ(row.on_device(params, uniform), row.on_cpu(params, uniform)) << text(params);
      }
    }
  }
}

}  // namespace
}  // namespace ds4::cuda
