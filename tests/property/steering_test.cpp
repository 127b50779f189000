// Steering and capture: the same on every path, off when the scale is 0, and what is removed is the
// direction.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support/loaded_model.hpp"

namespace ds4 {
namespace {

using backend::Capture;
using testing::LoadedModel;
using testing::must;

const std::string nano = DS4_SOURCE_DIR "/models/nano/nano.gguf";
const std::vector<Token> prompt = {0, 300, 301, 17, 1999, 42, 42, 7, 8, 9, 1000};

// Unit vectors, one for each layer.
std::vector<float> random_directions(const model::ModelShape& shape) {
  std::vector<float> values(size_t{shape.layers} * shape.width);
  uint64_t seed = 5;
  for (float& v : values) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    v = static_cast<float>(static_cast<double>(seed >> 40) / (1 << 23) - 1);
  }
  for (size_t l = 0; l < shape.layers; ++l) {
    float* d = values.data() + l * shape.width;
    const float norm = std::sqrt(std::inner_product(d, d + shape.width, d, 0.0f));
    for (size_t i = 0; i < shape.width; ++i) d[i] /= norm;
  }
  return values;
}

class Streams final : public cpu::ForwardObserver {
 public:
  void on_streams(size_t layer, std::span<const float> values) override {
    if (layer == 0) first.assign(values.begin(), values.end());
  }
  void on_experts(size_t, size_t, std::span<const uint32_t>) override {}
  void on_index_rows(size_t, size_t, std::span<const uint32_t>, std::span<const float>) override {}

  std::vector<float> first;  // after layer 0, [T][4][d]
};

class SteeringTest : public ::testing::Test {
 protected:
  SteeringTest() : plain(nano) {
    cpu::CpuOptions options;
    options.directions = random_directions(plain.shape);
    options.observer = &streams;
    steered = std::make_unique<LoadedModel>(nano, "", options);
  }

  std::vector<float> logits(const LoadedModel& model, SteeringScales scales) const {
    auto sequence = model.sequence();
    sequence->steering = scales;
    return model.prefill(*sequence, prompt);
  }

  LoadedModel plain;
  Streams streams;
  std::unique_ptr<LoadedModel> steered;
};

TEST_F(SteeringTest, ScaleZeroIsTheSameAsNone) {
  EXPECT_EQ(logits(*steered, {}), logits(plain, {}));
  EXPECT_EQ(logits(plain, {1, 1}), logits(plain, {}));  // without directions scales do nothing
  EXPECT_NE(logits(*steered, {0, 1}), logits(plain, {}));
  EXPECT_NE(logits(*steered, {1, 0}), logits(plain, {}));
  EXPECT_NE(logits(*steered, {1, 0}), logits(*steered, {0, 1}));
}

TEST_F(SteeringTest, DecodeAndBatchesGiveTheBitsOfPrefill) {
  const SteeringScales scales{0.5f, -1.0f};
  const auto expected = logits(*steered, scales);
  auto sequence = steered->sequence(), other = steered->sequence();
  sequence->steering = scales;
  std::vector<float> both(2 * steered->shape.vocabulary);
  for (const Token token : prompt) {  // beside a sequence that is not steered
    const backend::DecodeRow rows[] = {{other.get(), token}, {sequence.get(), token}};
    must(steered->backend->decode(rows, both));
  }
  const auto half = both.begin() + steered->shape.vocabulary;
  EXPECT_EQ(std::vector<float>(half, both.end()), expected);
  EXPECT_EQ(std::vector<float>(both.begin(), half), logits(plain, {}));
}

TEST_F(SteeringTest, ScalesHoldAcrossRestore) {
  auto sequence = steered->sequence();
  sequence->steering = {0, 1};
  steered->prefill(*sequence, prompt);
  const auto image = must(steered->backend->snapshot(*sequence));
  const auto next = steered->decode(*sequence, 5);
  sequence->steering = {};
  must(steered->backend->restore(*sequence, *image));
  EXPECT_NE(steered->decode(*sequence, 5), next);  // what was switched off stays off
}

TEST_F(SteeringTest, RemovesTheDirectionFromTheStreams) {
  const size_t d = plain.shape.width;
  logits(*steered, {});
  const auto before = streams.first;
  auto sequence = steered->sequence();
  sequence->steering = {0, 1};
  Capture capture{Component::feed_forward, prompt.size(), {}};
  std::vector<float> ignored(plain.shape.vocabulary);
  must(steered->backend->prefill(*sequence, prompt, 1, ignored, {{}, {}, &capture}));
  const auto removed_once = streams.first;
  logits(*steered, {0, 2});
  const auto removed_twice = streams.first;

  const std::vector<float> direction = random_directions(plain.shape);
  for (size_t t = 0; t < prompt.size(); ++t) {
    const float* y = capture.values.data() + t * d;  // layer 0
    const float amount = std::inner_product(y, y + d, direction.begin(), 0.0f);
    for (size_t h = 0; h < 4; ++h) {
      // What is missing from a stream is post[h] (0..2) times the amount along the direction.
      const float* a = before.data() + (t * 4 + h) * d;
      const float* b = removed_once.data() + (t * 4 + h) * d;
      const float* c = removed_twice.data() + (t * 4 + h) * d;
      float along = 0, across = 0;
      for (size_t i = 0; i < d; ++i) along += (a[i] - b[i]) * direction[i];
      for (size_t i = 0; i < d; ++i) {
        across += std::abs(a[i] - b[i] - along * direction[i]);
        EXPECT_NEAR(a[i] - c[i], 2 * (a[i] - b[i]), 1e-4f * (std::abs(a[i]) + 1));
      }
      EXPECT_LT(across, 1e-3f * static_cast<float>(d));
      EXPECT_GE(along / amount, -1e-4f);
      EXPECT_LE(along / amount, 2.0001f);
    }
  }
}

TEST_F(SteeringTest, CaptureIsUnsteeredAndChecksItsRows) {
  auto sequence = plain.sequence();
  std::vector<float> ignored(plain.shape.vocabulary);
  Capture last{Component::attention, 1, {}}, all{Component::attention, prompt.size(), {}};
  must(plain.backend->prefill(*sequence, prompt, 1, ignored, {{}, {}, &last}));
  must(plain.backend->prefill(*plain.sequence(), prompt, 1, ignored, {{}, {}, &all}));
  const size_t d = plain.shape.width, rows = prompt.size();
  ASSERT_EQ(last.values.size(), plain.shape.layers * d);
  for (size_t l = 0; l < plain.shape.layers; ++l) {
    const auto from = all.values.begin() + static_cast<ptrdiff_t>(((l + 1) * rows - 1) * d);
    EXPECT_TRUE(std::equal(from, from + static_cast<ptrdiff_t>(d),
                           last.values.begin() + static_cast<ptrdiff_t>(l * d)))
        << "layer " << l;
  }
  for (const size_t wrong : {size_t{0}, rows + 1}) {
    Capture bad{Component::attention, wrong, {}};
    const auto result = plain.backend->prefill(*plain.sequence(), prompt, 1, ignored, {{}, {}, &bad});
    EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace ds4
