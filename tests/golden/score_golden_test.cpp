// Scores of texts by the nano model against an independent implementation (tests/data/README.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "support/loaded_model.hpp"
#include "support/nano_goldens.hpp"

namespace ds4 {
namespace {

using testing::must;

struct Bounds {
  double mean = 0, token = 0;  // differences of a text's mean NLL, and of one token's
};

void check_scores(const std::string& model_path, const Bounds& bounds) {
  const auto golden = boost::json::parse(test::read_file(DS4_SOURCE_DIR "/tests/data/nano/score.json"));
  const auto given = golden.at("given").to_number<size_t>();
  const Engine engine = must(Engine::open(
      {.model_path = model_path, .backend = BackendChoice::cpu, .threads = 2, .exact_activations = true}));
  size_t texts = 0;
  for (const test::NanoGolden& prompt : test::nano_goldens("qat")) {
    const auto* expected = golden.at("prompts").as_object().if_contains(prompt.id());
    if (expected == nullptr) continue;
    const auto logprobs = boost::json::value_to<std::vector<double>>(expected->at("logprobs"));
    // By how much the token is likelier than any other; negative: less likely than another.
    const auto leads = boost::json::value_to<std::vector<double>>(expected->at("leads"));
    const auto ids = prompt.ids();
    Session session = must(engine.create_session(ids.size()));
    must(session.sync(std::span(ids).first(given)));
    const auto scores = must(session.score(std::span(ids).subspan(given)));
    ASSERT_EQ(scores.size(), logprobs.size());

    double difference = 0, nll = 0, largest = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      nll -= logprobs[i];
      difference += logprobs[i] - scores[i].logprob;
      largest = std::max(largest, std::fabs(scores[i].logprob - logprobs[i]));
      if (std::fabs(leads[i]) > bounds.token) {
        EXPECT_EQ(scores[i].likeliest, leads[i] > 0) << prompt.id() << ", token " << given + i;
      }
    }
    const auto count = static_cast<double>(scores.size());
    std::printf("%-15s mean NLL %.6f, difference %+.6f; largest of a token %.4f\n", prompt.id().c_str(),
                nll / count, difference / count, largest);
    EXPECT_LE(std::fabs(difference / count), bounds.mean) << prompt.id();
    EXPECT_LE(largest, bounds.token) << prompt.id();
    ++texts;
  }
  EXPECT_EQ(texts, 6u);
}

TEST(ScoreGoldenTest, RoundedF32) {
  check_scores(DS4_NANO_DIR "/nano-f32.gguf", {1e-3, 0.05});
}
TEST(ScoreGoldenTest, BundledQ8) {
  check_scores(DS4_SOURCE_DIR "/models/nano/nano.gguf", {3e-3, 0.3});
}

}  // namespace
}  // namespace ds4
