#include "ds4/steering.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "ds4/engine.hpp"

namespace ds4 {
namespace {

using ::testing::HasSubstr;

class SteeringFiles : public ::testing::Test {
 protected:
  void TearDown() override {
    std::filesystem::remove(path);
    std::filesystem::remove(json);
  }
  void write(const std::vector<float>& values) const {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
  }
  std::string error(uint32_t layers, uint32_t width) const {
    const auto read = read_directions(path, layers, width);
    return read ? "" : read.error().message;
  }

  const std::string path = ::testing::TempDir() + "steering_test.f32",
                    json = ::testing::TempDir() + "steering_test.json";
};

TEST_F(SteeringFiles, WhatIsWrittenIsRead) {
  SteeringDirections d;
  d.layers = 2;
  d.width = 3;
  d.values = {1, 0, 0, 0, 0.6f, 0.8f};
  d.component = Component::attention;
  d.thinking = d.orthogonalize = true;
  d.good_file = "a \"quoted\" name\n";
  d.model_name = "nano";
  d.positions = "last 4";
  d.first_layer = 1;
  d.last_layer = 1;
  d.system = "Be \\ brief.";
  d.prompts_hash = "00ff";
  write(d.values);
  std::ofstream(json) << steering_json(d);
  const auto read = read_directions(path, 2, 3);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->values, d.values);
  EXPECT_EQ(read->component, Component::attention);
  EXPECT_TRUE(read->thinking && read->orthogonalize && !read->pair_normalize);
  EXPECT_EQ(read->good_file, d.good_file);
  EXPECT_EQ(read->model_name, "nano");
  EXPECT_EQ(read->positions, "last 4");
  EXPECT_EQ(read->first_layer, 1u);
  EXPECT_EQ(read->last_layer, 1u);
  EXPECT_EQ(read->system, d.system);
  EXPECT_EQ(read->prompts_hash, "00ff");
}

TEST_F(SteeringFiles, TheDescriptionIsOptional) {
  write({1, 2, 3, 4});
  const auto read = read_directions(path, 2, 2);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->values, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(read->component, Component::feed_forward);
}

TEST_F(SteeringFiles, MistakesAreNamed) {
  EXPECT_THAT(error(2, 2), HasSubstr(path));
  write({1, 2, 3, 4});
  EXPECT_THAT(error(2, 3),
              HasSubstr("16 bytes, but the directions of a model with 2 layers of width 3 take 24"));
  write({1, 2, NAN, 4});
  EXPECT_THAT(error(2, 2), HasSubstr("the direction of layer 1 holds a value that is not finite"));
  write({1, 2, 3, 4});
  std::ofstream(json) << "{\"format\": \"ds4-directional-steering-v1\", \"shape\": [4, 1]}";
  EXPECT_THAT(error(2, 2),
              HasSubstr("made for a model of shape [4,1], but this one has 2 layers of width 2"));
  for (const char* text : {"", "[]", "{\"format\": \"other\"}", "{"}) {
    std::ofstream(json, std::ios::trunc) << text;
    EXPECT_THAT(error(2, 2), HasSubstr(json + ": not a description of steering directions")) << text;
  }
}

TEST_F(SteeringFiles, SessionsSteerAndCapture) {
  EngineOptions options;
  options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
  options.backend = BackendChoice::cpu;
  const std::vector<Token> prompt{0, 4091, 2424, 4092, 4094};
  const auto plain = Engine::open(options);
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->info().steering);
  auto session = plain->create_session(100);
  const auto captured = session->capture(prompt, Component::feed_forward, 2);
  ASSERT_TRUE(captured) << captured.error().message;
  const size_t layers = plain->info().layers, width = plain->info().width;
  ASSERT_EQ(captured->size(), layers * 2 * width);
  EXPECT_EQ(session->position(), prompt.size());
  EXPECT_EQ(session->capture(prompt, Component::attention, 6).error().code, ErrorCode::invalid_argument);

  // What the last token's feed-forward parts compute is removed altogether.
  std::vector<float> directions(layers * width);
  for (size_t l = 0; l < layers; ++l) {
    const float* y = captured->data() + (2 * l + 1) * width;
    double norm = 0;
    for (size_t i = 0; i < width; ++i) norm += double{y[i]} * y[i];
    for (size_t i = 0; i < width; ++i) directions[l * width + i] = y[i] / static_cast<float>(std::sqrt(norm));
  }
  write(directions);
  options.steering_path = path;
  const auto steered = Engine::open(options);
  ASSERT_TRUE(steered) << steered.error().message;
  EXPECT_TRUE(steered->info().steering);
  auto with = steered->create_session(100);
  ASSERT_TRUE(with->sync(prompt));
  ASSERT_TRUE(session->sync(prompt));
  const auto same = session->logits();
  EXPECT_TRUE(std::equal(same->begin(), same->end(), with->logits()->begin()));
  with->reset();
  with->set_steering({0, 1});
  ASSERT_TRUE(with->sync(prompt));
  EXPECT_FALSE(std::equal(same->begin(), same->end(), with->logits()->begin()));

  write({1, 2});
  EXPECT_FALSE(Engine::open(options));
}

}  // namespace
}  // namespace ds4
