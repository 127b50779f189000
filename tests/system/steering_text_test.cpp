// Removing a direction changes what is said: a model made by hand, the real program, prefill and decoding.
// Built twice: DS4_TEST_BACKEND is "cpu" here and "cuda" in tests/cuda.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.hpp"
#include "ds4/chat.hpp"
#include "ds4/engine.hpp"
#include "support/alphabet_model.hpp"
#include "support/loaded_model.hpp"

namespace ds4 {
namespace {

using testing::alphabet_text;

const std::string backend_name = DS4_TEST_BACKEND;

std::string shouts(size_t count) {
  return std::string(count, '!');
}

class SteeringText : public ::testing::TestWithParam<Component> {
 protected:
  void SetUp() override {
    std::string why;
    if (backend_name == "cuda" && !cuda::available(&why)) GTEST_SKIP() << why;
    const std::string stem = fmt::format("{}alphabet_{}", ::testing::TempDir(), getpid());
    model = stem + ".gguf";
    direction = stem + ".f32";
    const auto written = testing::write_alphabet_model(model, GetParam());
    ASSERT_TRUE(written) << written.error().message;
    const std::vector<float> values = testing::alphabet_directions(GetParam());
    std::ofstream(direction, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
  }
  void TearDown() override {
    std::filesystem::remove(model);
    std::filesystem::remove(direction);
  }

  Engine open_engine() const {
    EngineOptions options;
    options.model_path = model;
    options.steering_path = direction;
    options.backend = backend_name == "cuda" ? BackendChoice::cuda : BackendChoice::cpu;
    return testing::must(Engine::open(options));
  }

  static SteeringScales scale(float own, float other = 0) {
    return GetParam() == Component::attention ? SteeringScales{own, other} : SteeringScales{other, own};
  }

  // What `ds4` answers, without the line break at its end.
  std::string said(const std::string& arguments, const std::string& prompt = "hi") const {
    const char* program = std::getenv("DS4_PROGRAM");
    EXPECT_NE(program, nullptr) << "DS4_PROGRAM names the program to run";
    if (program == nullptr) return "";
    const std::string command = fmt::format("'{}' -m '{}' --backend {} --temp 0 --nothink -n 16 -p '{}' {}",
                                            program, model, backend_name, prompt, arguments);
    FILE* pipe = popen(command.c_str(), "r");
    std::string text;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
    const int status = pclose(pipe);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command;
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }
  std::string steered(float attention, float feed_forward) const {
    return fmt::format("--dir-steering-file '{}' --dir-steering-attn {} --dir-steering-ffn {}", direction,
                       attention, feed_forward);
  }
  std::string steered(const SteeringScales& scales) const {
    return steered(scales.attention, scales.feed_forward);
  }

  std::string model, direction;
};

TEST_P(SteeringText, TheProgramSaysWhatTheModelSaysWithoutTheDirection) {
  EXPECT_EQ(said(""), shouts(16));
  EXPECT_EQ(said(steered(scale(1))), alphabet_text);
  EXPECT_EQ(said(steered(scale(0))), shouts(16));
  EXPECT_EQ(said(steered(scale(-1))), shouts(16));    // strengthened
  EXPECT_EQ(said(steered(scale(0, 1))), shouts(16));  // of the other part, which does not shout
  EXPECT_EQ(said(steered(scale(1, 1))), alphabet_text);
}

TEST_P(SteeringText, LongPromptsInPieces) {
  const std::string prompt(300, 'x');
  for (const char* chunk : {"", " --prefill-chunk 128", " --prefill-chunk 7"}) {
    EXPECT_EQ(said(chunk, prompt), shouts(16));
    EXPECT_EQ(said(steered(scale(1)) + chunk, prompt), alphabet_text);
  }
}

// The session of the library, steered while it evaluates the prompt or while it decodes. A GPU takes prompts
// of up to 16 tokens through the kernels of decoding and longer ones through those of prefill.
TEST_P(SteeringText, PrefillAndDecodingAreSteeredApart) {
  const Engine engine = open_engine();
  const Tokenizer& tokenizer = engine.tokenizer();
  for (const std::string& message : {std::string("hi"), std::string(300, 'x')}) {
    const auto prompt =
        render_chat({{.role = Role::user, .content = message}}, {.think = ThinkMode::none}).encode(tokenizer);
    EXPECT_EQ(prompt.size() > 16, message.size() > 16);
    const auto answer = [&](const SteeringScales& prefill, const SteeringScales& decoding) {
      auto session = engine.create_session(512);
      session->set_steering(prefill);
      EXPECT_TRUE(session->sync(prompt));
      session->set_steering(decoding);
      Rng unused(1);
      std::string text;
      for (int i = 0; i < 6; ++i) {
        const auto tokens = session->generate({.temperature = 0}, unused, 1);
        EXPECT_TRUE(tokens) << tokens.error().message;
        text += tokenizer.decode(tokens->front());
      }
      return text;
    };
    EXPECT_EQ(answer({}, {}), "!!!!!!");
    EXPECT_EQ(answer(scale(1), {}), "a!!!!!");
    EXPECT_EQ(answer({}, scale(1)), "!abcde");
    EXPECT_EQ(answer(scale(1), scale(1)), "abcdef");
    EXPECT_EQ(answer(scale(0, 1), scale(0, 1)), "!!!!!!");
  }
}

// Capture, by which directions are found, sees the direction whether or not it is removed afterwards.
TEST_P(SteeringText, CaptureFindsTheDirection) {
  const Engine engine = open_engine();
  const size_t width = engine.info().width, layer = GetParam() == Component::attention ? 1 : 4;
  const std::vector<float> directions = testing::alphabet_directions(GetParam());
  auto session = engine.create_session(512);
  for (const size_t length : {3u, 300u}) {
    for (const float own : {0.0f, 1.0f}) {
      session->set_steering(scale(own));
      std::vector<Token> tokens(length, 101);
      tokens[0] = 0;
      const auto captured = session->capture(tokens, GetParam(), 1);
      ASSERT_TRUE(captured) << captured.error().message;
      double along = 0, all = 0;
      for (size_t i = layer * width; i < (layer + 1) * width; ++i) {
        along += double{(*captured)[i]} * directions[i];
        all += double{(*captured)[i]} * (*captured)[i];
      }
      EXPECT_GT(along, 3);
      EXPECT_GT(along * along / all, 0.9);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, SteeringText,
                         ::testing::Values(Component::attention, Component::feed_forward),
                         [](const auto& part) {
                           return part.param == Component::attention ? "attention" : "feed_forward";
                         });

}  // namespace
}  // namespace ds4
