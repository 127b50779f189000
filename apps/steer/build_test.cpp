#include "build.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace ds4::steer {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

using Row = std::vector<float>;

void expect_near(const Row& values, const Row& expected) {
  EXPECT_THAT(values, Pointwise(FloatNear(1e-6f), expected));
}

TEST(DirectionSums, DifferenceOfMeans) {
  DirectionSums sums(2, 2);
  //        layer 0  layer 1
  sums.add(Row{5, 1, 1, 0}, Row{1, 1, 1, 2});
  sums.add(Row{1, 5, 1, 0}, Row{-1, -1, 1, 2});
  EXPECT_EQ(sums.pairs(), 2u);
  // Layer 0: (3, 3) - (0, 0); layer 1: (1, 0) - (1, 2).
  const float half = 0.70710678f;
  expect_near(sums.directions(false, false), {half, half, 0, -1});
}

TEST(DirectionSums, PairsOfEqualWeight) {
  DirectionSums sums(1, 2);
  sums.add(Row{100, 0}, Row{0, 0});
  sums.add(Row{0, 1}, Row{0, 0});
  expect_near(sums.directions(false, false), {0.99995f, 0.0099995f});
  const float half = 0.70710678f;  // (1, 0) and (0, 1)
  expect_near(sums.directions(true, false), {half, half});
}

TEST(DirectionSums, WithoutTheMeanOfBad) {
  DirectionSums sums(1, 3);
  sums.add(Row{7, 3, 4}, Row{1, 0, 0});
  sums.add(Row{7, 3, 4}, Row{3, 0, 0});
  expect_near(sums.directions(false, false), {5 / 7.0710678f, 3 / 7.0710678f, 4 / 7.0710678f});
  expect_near(sums.directions(false, true), {0, 0.6f, 0.8f});  // the mean of bad is (2, 0, 0)
}

TEST(DirectionSums, WithoutTheMeanOfBadAlsoForNormalisedPairs) {
  DirectionSums sums(1, 2);
  sums.add(Row{2, 9}, Row{2, 1});  // difference (0, 8), of bad (0.8944, 0.4472)
  expect_near(sums.directions(true, true), {-0.4472136f, 0.8944272f});
}

TEST(DirectionSums, ZeroStaysZero) {
  DirectionSums sums(3, 2);
  sums.add(Row{1, 2, 3, 4, 1, 0}, Row{1, 2, 0, 0, 2, 0});
  for (const bool pair_normalize : {false, true}) {
    // Layer 0: no difference. Layer 1: the mean of bad is zero. Layer 2: all of it lies along the mean of
    // bad.
    expect_near(sums.directions(pair_normalize, false), {0, 0, 0.6f, 0.8f, -1, 0});
    expect_near(sums.directions(pair_normalize, true), {0, 0, 0.6f, 0.8f, 0, 0});
  }
}

class BuildDirections : public ::testing::Test {
 protected:
  BuildDirections() {
    options.out = folder + "/d";
    options.good_path = "good.txt";
    options.bad_path = "bad.txt";
    std::filesystem::create_directory(folder);
  }
  ~BuildDirections() override { std::filesystem::remove_all(folder); }

  static Engine open() {
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = BackendChoice::cpu;
    return std::move(*Engine::open(options));
  }
  Result<void> build() {
    return build_directions(options, "nano.gguf", engine, good, bad,
                            [&](size_t done, size_t total) { progress.push_back(done * 100 + total); });
  }
  SteeringDirections read() const {
    const auto result = read_directions(options.out + ".f32", engine.info().layers, engine.info().width);
    EXPECT_TRUE(result) << result.error().message;
    return result ? *result : SteeringDirections{};
  }
  bool zero(const SteeringDirections& d, size_t layer) const {
    const auto begin = d.values.begin() + static_cast<ptrdiff_t>(layer * d.width);
    return std::all_of(begin, begin + d.width, [](float x) { return x == 0; });
  }

  const std::string folder = fmt::format("{}steer_build_test_{}", ::testing::TempDir(), getpid());
  const Engine engine = open();
  Options options;
  std::vector<Prompt> good{{"Briefly: what is salt?", ""}, {"Briefly: what is a cat?", ""}};
  std::vector<Prompt> bad{
      {"In detail: what is salt?", ""}, {"In detail: what is a cat?", ""}, {"no partner", ""}};
  std::vector<size_t> progress;
};

TEST_F(BuildDirections, WritesUnitVectorsAndTheirStory) {
  options.component = Component::attention;
  options.positions.last = 4;
  options.pair_normalize = true;
  ASSERT_TRUE(build());
  EXPECT_THAT(progress, ElementsAre(102, 202));
  const SteeringDirections d = read();
  for (size_t l = 0; l < d.layers; ++l) {
    double norm = 0;
    for (size_t i = 0; i < d.width; ++i)
      norm += double{d.values[l * d.width + i]} * d.values[l * d.width + i];
    EXPECT_NEAR(norm, 1, 1e-6);
  }
  EXPECT_EQ(d.component, Component::attention);
  EXPECT_TRUE(d.pair_normalize && !d.orthogonalize && !d.thinking);
  EXPECT_EQ(d.positions, "last 4");
  EXPECT_EQ(d.first_layer, 0u);
  EXPECT_EQ(d.last_layer, d.layers - 1);
  EXPECT_EQ(d.system, "You are a helpful assistant.");
  EXPECT_EQ(d.good_file, "good.txt");
  EXPECT_EQ(d.prompts_hash, prompts_hash(good, bad));
  EXPECT_TRUE(std::filesystem::path(d.model).is_absolute());
  EXPECT_EQ(d.model_name, engine.info().name);
  EXPECT_THAT(d.note, HasSubstr("good minus bad"));
}

// One pair, so the direction is the difference of what was captured, and nothing else.
TEST_F(BuildDirections, PointsFromBadToGood) {
  good.resize(1);
  ASSERT_TRUE(build());
  const SteeringDirections d = read();
  auto session = *engine.create_session(4096);
  const auto capture = [&](const Prompt& prompt) {
    const auto tokens = render(engine.tokenizer(), options.system, prompt.text, options.think).tokens;
    return *session.capture(tokens, Component::feed_forward, 1);
  };
  const auto towards = capture(good[0]), away = capture(bad[0]);
  for (size_t l = 0; l < d.layers; ++l) {
    double along = 0, norm = 0;
    for (size_t i = l * d.width; i < (l + 1) * d.width; ++i) {
      const double difference = double{towards[i]} - away[i];
      along += difference * d.values[i];
      norm += difference * difference;
    }
    EXPECT_NEAR(along / std::sqrt(norm), 1, 1e-6) << "layer " << l;
  }
}

TEST_F(BuildDirections, PositionsMatter) {
  std::vector<Row> results;
  for (const Positions positions : {Positions{}, Positions{false, 3}, Positions{true, 1}}) {
    options.positions = positions;
    ASSERT_TRUE(build());
    results.push_back(read().values);
  }
  EXPECT_NE(results[0], results[1]);
  EXPECT_NE(results[1], results[2]);
  EXPECT_NE(results[0], results[2]);
  EXPECT_EQ(read().positions, "all");
}

TEST_F(BuildDirections, OnlyTheLayersAskedFor) {
  options.first_layer = 2;
  options.last_layer = 3;
  ASSERT_TRUE(build());
  const SteeringDirections d = read();
  for (size_t l = 0; l < d.layers; ++l) EXPECT_EQ(zero(d, l), l < 2 || l > 3) << "layer " << l;
  EXPECT_EQ(d.first_layer, 2u);
  EXPECT_EQ(d.last_layer, 3u);
}

TEST_F(BuildDirections, LayersThatDoNotExist) {
  for (const auto& [first, last] : {std::pair{6u, 6u}, std::pair{3u, 6u}}) {
    options.first_layer = first;
    options.last_layer = last;
    const auto result = build();
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message, HasSubstr("the model's layers are 0 to 5"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(BuildDirections, FailuresNameThePromptAndLeaveNothing) {
  options.context_tokens = 16;
  const auto result = build();
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("prompt \"Briefly: what is salt?\""));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  options.context_tokens = 4096;
  options.out = folder + "/no/d";
  EXPECT_THAT(build().error().message, HasSubstr("/no/d.f32"));
  EXPECT_TRUE(progress.empty());  // before anything was evaluated
}

}  // namespace
}  // namespace ds4::steer
