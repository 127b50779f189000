// Drafters of known quality: one that is always right, one that never is, and what sampling makes of drafts.
// Built for the CPU and for a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "ds4/sampling.hpp"
#include "engine/engine_impl.hpp"
#include "support/loaded_model.hpp"
#include "support/oracle_backend.hpp"
#include "support/tested_device.hpp"

namespace ds4 {
namespace {

using testing::must;

constexpr SamplingParams greedy{.temperature = 0};

class DraftersTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = testing::tested_backend;
    options.threads = 1;
    engine_ = std::make_unique<Engine>(must(EngineAccess::open(options, [&](auto backend) {
      return std::make_unique<testing::OracleBackend>(std::move(backend), oracle_);
    })));
    oracle_.vocabulary = engine_->info().vocabulary;
    prompt_ = engine_->tokenizer().encode_rendered(
        "<｜begin▁of▁sentence｜><｜User｜>What is 47 + 85?<｜Assistant｜></think>");
  }

  Session session(const SpeculationOptions& options) const {
    Session session = must(engine_->create_session(4096));
    session.set_speculation(options);
    must(session.sync(prompt_));
    return session;
  }

  static std::vector<Token> go_on(Session& session, size_t count) {
    std::vector<Token> tokens;
    Rng rng(1);
    while (tokens.size() < count) {
      const auto step = must(session.generate(greedy, rng, count - tokens.size()));
      tokens.insert(tokens.end(), step.begin(), step.end());
    }
    return tokens;
  }

  // What plain decoding says, which the oracle knows from now on.
  std::vector<Token> learn_text(size_t count) {
    Session plain = session({});
    const std::vector<Token> reply = go_on(plain, count);
    oracle_.text.assign(plain.tokens().begin(), plain.tokens().end());
    return reply;
  }

  testing::Oracle oracle_;
  std::unique_ptr<Engine> engine_;
  std::vector<Token> prompt_;
};

TEST_F(DraftersTest, APerfectDrafterIsAccepted) {
  constexpr size_t count = 512;
  const auto expected = learn_text(count);
  for (size_t depth = 1; depth <= 4; ++depth) {
    oracle_.clear_counts();
    Session run = session({.depth = depth, .adaptive = false});
    EXPECT_EQ(go_on(run, count), expected);
    const SpeculationStats& stats = run.speculation();
    std::printf("depth %zu: %llu passes for %zu tokens; accepted/drafted by place", depth,
                static_cast<unsigned long long>(oracle_.passes), count);
    for (size_t i = 0; i < depth; ++i) {
      std::printf("  %llu/%llu", static_cast<unsigned long long>(stats.accepted[i]),
                  static_cast<unsigned long long>(stats.drafted[i]));
      EXPECT_GT(stats.drafted[i], 0u);
      EXPECT_GE(static_cast<double>(stats.accepted[i]), 0.99 * static_cast<double>(stats.drafted[i]));
    }
    std::printf("\n");
    EXPECT_EQ(oracle_.passes, (count + depth) / (depth + 1));
  }
}

// A pass gives a token at least, so what wrong drafts cost is the rows that they add to passes, and drafting.
// Counted here as if a row cost as much as a pass and a draft a tenth; both cost less.
TEST_F(DraftersTest, AnAlwaysWrongDrafterCostsLittle) {
  constexpr size_t start = 100, count = 1000;
  const auto expected = learn_text(start + count);
  oracle_.right = 0;
  const auto cost = [&](const SpeculationOptions& options) {
    Session run = session(options);
    auto tokens = go_on(run, start);
    oracle_.clear_counts();
    const auto more = go_on(run, count);
    tokens.insert(tokens.end(), more.begin(), more.end());
    EXPECT_EQ(tokens, expected);
    EXPECT_EQ(oracle_.passes, count);
    for (const uint64_t accepted : run.speculation().accepted) EXPECT_EQ(accepted, 0u);
    EXPECT_GT(run.speculation().drafted[0], 0u);
    std::printf("%s: %llu rows and %llu drafts for %zu tokens\n",
                options.adaptive ? "adaptive" : "always drafting",
                static_cast<unsigned long long>(oracle_.rows),
                static_cast<unsigned long long>(oracle_.drafts), count);
    return (static_cast<double>(oracle_.rows) + 0.1 * static_cast<double>(oracle_.drafts)) / count;
  };
  EXPECT_LT(cost({.depth = 4}), 1.1);
  EXPECT_GT(cost({.depth = 4, .adaptive = false}), 4.9);  // so that what is counted is what drafts cost
}

// Text that is sampled with drafts against the product of the probabilities that plain decoding gives. Three
// tokens of 4 choices each: the first is sampled as always, the others are drafted.
TEST_F(DraftersTest, SampledTextHasTheDistributionOfTheModel) {
  constexpr size_t choices = 4, cells = choices * choices * choices, samples = 2500;
  const SamplingParams params{.temperature = 4.0f, .top_k = choices, .top_p = 1, .min_p = 0};
  for (Token i = 1; i < 40; ++i) prompt_.push_back(i * 997 % 4000);  // what no model is sure about
  learn_text(8);

  struct Choices {
    std::array<Token, choices> tokens;
    std::array<double, choices> probabilities;
  };
  Session session_of_prefix = session({});
  const Snapshot after_prompt = must(session_of_prefix.snapshot());
  const auto choices_after = [&](std::initializer_list<Token> prefix) {
    must(session_of_prefix.restore(after_prompt));
    for (const Token token : prefix) must(session_of_prefix.eval(token));
    const auto logits = must(session_of_prefix.logits());
    std::vector<Token> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Token>(i);
    std::partial_sort(order.begin(), order.begin() + choices, order.end(),
                      [&](Token a, Token b) { return logits[a] > logits[b]; });
    Choices result;
    double sum = 0;
    for (size_t i = 0; i < choices; ++i) {
      result.tokens[i] = order[i];
      sum += result.probabilities[i] =
          std::exp((double{logits[order[i]]} - logits[order[0]]) / double{params.temperature});
    }
    for (double& probability : result.probabilities) probability /= sum;
    return result;
  };
  std::array<std::array<Token, 3>, cells> texts{};
  std::array<double, cells> expected{}, observed{};
  const Choices first = choices_after({});
  for (size_t i = 0; i < choices; ++i) {
    const Choices second = choices_after({first.tokens[i]});
    for (size_t j = 0; j < choices; ++j) {
      const Choices third = choices_after({first.tokens[i], second.tokens[j]});
      for (size_t k = 0; k < choices; ++k) {
        const size_t cell = (i * choices + j) * choices + k;
        texts[cell] = {first.tokens[i], second.tokens[j], third.tokens[k]};
        expected[cell] = samples * first.probabilities[i] * second.probabilities[j] * third.probabilities[k];
      }
    }
  }

  Session run = session({.depth = 2, .adaptive = false});
  for (size_t sample = 0; sample < samples; ++sample) {
    must(run.restore(after_prompt));
    Rng rng((sample + 1) * 0x9e3779b97f4a7c15u);
    std::vector<Token> text;
    while (text.size() < 3) {
      const auto step = must(run.generate(params, rng, 3 - text.size()));
      text.insert(text.end(), step.begin(), step.end());
    }
    const auto found = std::find_if(texts.begin(), texts.end(), [&](const auto& candidate) {
      return std::equal(candidate.begin(), candidate.end(), text.begin());
    });
    ASSERT_NE(found, texts.end());
    ++observed[static_cast<size_t>(found - texts.begin())];
  }

  // Pearson's statistic; cells that expect fewer than 5 are counted as one.
  double statistic = 0, rare_expected = 0, rare_observed = 0;
  size_t counted = 0;
  const auto count = [&](double seen, double hoped) {
    statistic += (seen - hoped) * (seen - hoped) / hoped;
    ++counted;
  };
  for (size_t cell = 0; cell < cells; ++cell) {
    if (expected[cell] >= 5) {
      count(observed[cell], expected[cell]);
    } else {
      rare_expected += expected[cell];
      rare_observed += observed[cell];
    }
  }
  if (rare_expected >= 5) count(rare_observed, rare_expected);
  // The value that chance exceeds once in 10,000 times, by Wilson and Hilferty.
  const double freedom = static_cast<double>(counted - 1), part = 2 / (9 * freedom), quantile = 3.719;
  const double bound = freedom * std::pow(1 - part + quantile * std::sqrt(part), 3);
  const SpeculationStats& stats = run.speculation();
  std::printf("chi squared %.1f, %zu cells, bound %.1f; accepted/drafted %llu/%llu %llu/%llu\n", statistic,
              counted, bound, static_cast<unsigned long long>(stats.accepted[0]),
              static_cast<unsigned long long>(stats.drafted[0]),
              static_cast<unsigned long long>(stats.accepted[1]),
              static_cast<unsigned long long>(stats.drafted[1]));
  EXPECT_LT(statistic, bound);
  EXPECT_GE(counted, 20u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(stats.accepted[i], samples / 20);
    EXPECT_LT(stats.accepted[i], stats.drafted[i] * 9 / 10);
  }
}

}  // namespace
}  // namespace ds4
