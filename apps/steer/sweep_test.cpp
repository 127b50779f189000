#include "sweep.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "support/alphabet_model.hpp"

namespace ds4::steer {
namespace {

using ::testing::ElementsAre;

// The model of tests/support/alphabet_model.hpp says "abcdefghij" without its direction and only "!" with it.
class Sweep : public ::testing::TestWithParam<Component> {
 protected:
  Sweep() {
    EXPECT_TRUE(ds4::testing::write_alphabet_model(stem + ".gguf", GetParam()));
    directions.values = testing::alphabet_directions(GetParam());
    directions.layers = testing::alphabet_shape().layers;
    directions.width = testing::alphabet_shape().width;
    directions.component = GetParam();
    std::ofstream(stem + ".f32", std::ios::binary)
        .write(reinterpret_cast<const char*>(directions.values.data()),
               static_cast<std::streamsize>(directions.values.size() * sizeof(float)));
    EngineOptions engine_options;
    engine_options.model_path = stem + ".gguf";
    engine_options.steering_path = stem + ".f32";
    engine_options.backend = BackendChoice::cpu;
    engine.emplace(std::move(*Engine::open(engine_options)));
    options.context_tokens = 200;
    options.max_tokens = 12;
    options.system = "";
  }
  ~Sweep() override {
    std::filesystem::remove(stem + ".gguf");
    std::filesystem::remove(stem + ".f32");
  }

  const std::string stem = fmt::format("{}steer_sweep_test_{}", ::testing::TempDir(), getpid());
  SteeringDirections directions;
  std::optional<Engine> engine;
  Options options;
};

TEST_P(Sweep, ScalesOfTheDirectionsOwnPart) {
  options.scales = {-1, 0, 1};
  std::vector<std::string> answers;
  std::vector<size_t> progress;
  SweepOutput output;
  output.on_answer = [&](float scale, const Prompt& prompt, const std::string& answer) {
    answers.push_back(fmt::format("{} {} {}", scale, prompt.text, answer));
  };
  output.on_progress = [&](size_t done, size_t total) { progress.push_back(done * 100 + total); };
  const auto rows = run_sweep(options, *engine, directions, {{"x", "abcdefghij"}, {"y", ""}}, output);
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_THAT(answers, ElementsAre("-1 x !!!!!!!!!!!!", "-1 y !!!!!!!!!!!!", "0 x !!!!!!!!!!!!",
                                   "0 y !!!!!!!!!!!!", "1 x abcdefghij", "1 y abcdefghij"));
  EXPECT_THAT(progress, ElementsAre(106, 206, 306, 406, 506, 606));
  ASSERT_EQ(rows->size(), 3u);
  for (const ScaleRow& row : *rows) {
    const bool removed = row.scale == 1;
    EXPECT_EQ(row.words, 1);
    EXPECT_EQ(row.tokens, removed ? 10 : 12);
    EXPECT_EQ(row.asked, 1u);
    EXPECT_EQ(row.right, removed ? 1u : 0u);
    EXPECT_EQ(row.cut, removed ? 0u : 2u);
  }
}

// Only one layer has a direction, and no earlier one is edited: (1 - scale) times the projection without
// steering.
TEST_P(Sweep, ProjectionIsTheMeanOfTheLayersWithADirection) {
  options.scales = {-1, 0, 1, 2};
  const auto rows = run_sweep(options, *engine, directions, {{"x", ""}, {"some y", ""}}, {});
  ASSERT_TRUE(rows);
  double expected = 0;
  for (const char* text : {"x", "some y"}) {
    auto session = *engine->create_session(200);
    const auto tokens = render(engine->tokenizer(), "", text, ThinkMode::none).tokens;
    const auto y = *session.capture(tokens, GetParam(), 1);
    expected += std::inner_product(y.begin(), y.end(), directions.values.begin(), 0.0) / 2;
  }
  EXPECT_GT(expected, 3);
  const double along[] = {2 * expected, expected, 0, -expected};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR((*rows)[i].projection, along[i], 1e-5);
}

TEST_P(Sweep, AttentionKeepsItsScaleWhileFeedForwardIsSwept) {
  options.scales = {0};
  options.attention_scale = 1;
  std::string text;
  SweepOutput output;
  output.on_answer = [&](float, const Prompt&, const std::string& answer) { text = answer; };
  directions.component = Component::feed_forward;  // what is swept
  ASSERT_TRUE(run_sweep(options, *engine, directions, {{"x", ""}}, output));
  EXPECT_EQ(text, GetParam() == Component::attention ? "abcdefghij" : "!!!!!!!!!!!!");
}

TEST_P(Sweep, AFullContextEndsAnAnswer) {
  options.scales = {0};
  options.max_tokens = 160;
  options.context_tokens = 20;
  const auto rows = run_sweep(options, *engine, directions, {{"x", ""}}, {});
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_EQ(rows->front().cut, 1u);
  EXPECT_LT(rows->front().tokens, 20);
  options.context_tokens = 2;
  EXPECT_FALSE(run_sweep(options, *engine, directions, {{"x", ""}}, {}));
}

INSTANTIATE_TEST_SUITE_P(Parts, Sweep, ::testing::Values(Component::attention, Component::feed_forward),
                         [](const auto& part) {
                           return part.param == Component::attention ? "attention" : "feed_forward";
                         });

}  // namespace
}  // namespace ds4::steer
