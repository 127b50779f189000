// Scores of texts by the nano model, compared with an independent implementation (tests/data/README.md).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "support/loaded_model.hpp"
#include "support/nano_goldens.hpp"

namespace ds4::test {

/// Largest differences of a text's mean, and of one token's log-probability.
struct ScoreBounds {
  double mean = 0, token = 0;
};

inline void check_scores(const Engine& engine, const ScoreBounds& bounds) {
  const auto golden = boost::json::parse(read_file(DS4_SOURCE_DIR "/tests/data/nano/score.json"));
  const auto given = golden.at("given").to_number<size_t>();
  size_t texts = 0;
  for (const NanoGolden& prompt : nano_goldens("qat")) {
    const auto* expected = golden.at("prompts").as_object().if_contains(prompt.id());
    if (expected == nullptr) continue;
    const auto logprobs = boost::json::value_to<std::vector<double>>(expected->at("logprobs"));
    // By how much the token is likelier than any other; negative: less likely than another.
    const auto leads = boost::json::value_to<std::vector<double>>(expected->at("leads"));
    const auto ids = prompt.ids();
    Session session = testing::must(engine.create_session(ids.size()));
    testing::must(session.sync(std::span(ids).first(given)));
    const auto scores = testing::must(session.score(std::span(ids).subspan(given)));
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

}  // namespace ds4::test
