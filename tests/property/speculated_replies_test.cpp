// Replies with a forced number of drafts at a time are those of plain decoding, bit for bit, and as many
// drafts are right as the bundled model was measured to have. Built for the CPU and for a GPU.
//
// On the CPU every prompt is tried at one depth, the depths taking turns. All prompts at all depths:
// ds4_speculated_replies_test --gtest_also_run_disabled_tests --gtest_filter='*EveryPrompt*'
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <vector>

#include "ds4/engine.hpp"
#include "ds4/sampling.hpp"
#include "support/nano_prompts.hpp"
#include "support/session_checks.hpp"
#include "support/tested_device.hpp"

namespace ds4 {
namespace {

using testing::logits_of;
using testing::must;

constexpr size_t deepest = 4, reply_tokens = 128;
constexpr size_t prompt_count = testing::on_gpu ? 40 : 200;

// Of all first drafts, 99.8 % (17090 of 17133) were right, and of the second drafts behind a right first one
// 99.8 % (16351 of 16390): measured when the model was trained, on greedy replies to held-out questions up to
// their EOS, with the pairing of docs/speculation.md.
constexpr double measured_right = 0.998, allowed_distance = 0.02;

constexpr SamplingParams greedy{.temperature = 0};

// Drafts by place, up to the first EOS of each reply.
struct Right {
  std::array<size_t, deepest> drafted{}, accepted{};  // drafted: those whose predecessors were right

  double share(size_t place) const {
    return static_cast<double>(accepted[place]) / static_cast<double>(drafted[place]);
  }
  void print(size_t depth) const {
    std::cout << "depth " << depth << ": accepted/drafted by place, up to EOS";
    for (size_t i = 0; i < depth; ++i) std::cout << "  " << accepted[i] << "/" << drafted[i];
    std::cout << "\n";
  }
};

struct Reply {
  std::vector<Token> tokens;
  std::vector<float> logits;  // after the last
};

class SpeculatedRepliesTest : public testing::DeviceTest {
 protected:
  static void SetUpTestSuite() {
    if (testing::on_gpu && !cuda::available(nullptr)) return;
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = testing::tested_backend;
    options.threads = 1;
    plain_ = std::make_unique<Engine>(must(Engine::open(options)));
    options.mtp_path = DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf";
    drafting_ = std::make_unique<Engine>(must(Engine::open(options)));
    prompts_ = testing::NanoPrompts(plain_->tokenizer()).make(prompt_count);
  }
  static void TearDownTestSuite() {
    plain_.reset();
    drafting_.reset();
  }

  static Session session(const Engine& engine, size_t depth) {
    Session session = must(engine.create_session(2048));
    session.set_speculation({.depth = depth, .min_margin = 0, .adaptive = false});
    return session;
  }

  // The next `count` tokens, past any EOS.
  static std::vector<Token> go_on(Session& session, size_t count, Right* right = nullptr) {
    const Token eos = plain_->tokenizer().special().eos;
    std::vector<Token> tokens;
    Rng rng(1);
    bool ended = false;
    while (tokens.size() < count) {
      const auto drafted_before = session.speculation().drafted;
      const auto step = must(session.generate(greedy, rng, count - tokens.size()));
      tokens.insert(tokens.end(), step.begin(), step.end());
      const auto& drafted = session.speculation().drafted;
      for (size_t i = 0; !ended && i < step.size(); ++i) {  // draft i is right if there is a token i + 1
        ended = step[i] == eos;
        if (ended || right == nullptr || i == deepest || drafted[i] == drafted_before[i]) break;
        ++right->drafted[i];
        if (i + 1 < step.size()) ++right->accepted[i];
      }
    }
    return tokens;
  }

  static Reply reply(const Engine& engine, std::span<const Token> prompt, size_t depth,
                     Right* right = nullptr) {
    Session fresh = session(engine, depth);
    must(fresh.sync(prompt));
    Reply result;
    result.tokens = go_on(fresh, reply_tokens, right);
    result.logits = logits_of(fresh);
    return result;
  }

  static inline std::unique_ptr<Engine> plain_, drafting_;
  static inline std::vector<std::vector<Token>> prompts_;
};

class SpeculatedRepliesAtDepth : public SpeculatedRepliesTest, public ::testing::WithParamInterface<size_t> {
 protected:
  static void check_replies(bool every_prompt) {
    const size_t depth = GetParam();
    Right right;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      if (!every_prompt && depth != 1 + i / 2 % deepest) continue;
      const Reply expected = reply(*plain_, prompts_[i], 0);
      const Reply run = reply(*drafting_, prompts_[i], depth, &right);
      ASSERT_EQ(run.tokens, expected.tokens) << "prompt " << i;
      ASSERT_EQ(run.logits, expected.logits) << "prompt " << i;
    }
    right.print(depth);
    for (size_t i = 0; i < depth; ++i) {
      EXPECT_GT(right.drafted[i], 0u) << "draft " << i + 1;
      EXPECT_GT(right.accepted[i], 0u) << "draft " << i + 1;
    }
    EXPECT_NEAR(right.share(0), measured_right, allowed_distance);
    if (depth > 1) {
      EXPECT_NEAR(right.share(1), measured_right, allowed_distance);
    }
  }
};

TEST_P(SpeculatedRepliesAtDepth, ForcedDraftsChangeNothing) {
  check_replies(testing::on_gpu);
}

TEST_P(SpeculatedRepliesAtDepth, DISABLED_EveryPrompt) {
  check_replies(true);
}

INSTANTIATE_TEST_SUITE_P(, SpeculatedRepliesAtDepth, ::testing::Range(size_t{1}, deepest + 1));

// A reply that is left in the middle, a next turn whose evaluation is cancelled, and the next reply.
TEST_F(SpeculatedRepliesTest, CancelThenContinue) {
  testing::NanoPrompts questions(plain_->tokenizer());
  size_t cancelled = 0;
  for (size_t i = 0; i < prompts_.size(); i += 5) {
    const size_t depth = 1 + i % deepest, length = 3 + i % 37;
    const auto turn = questions.next_turn();
    Session expected = session(*plain_, 0), run = session(*drafting_, depth);
    must(expected.sync(prompts_[i]));
    must(run.sync(prompts_[i]));
    std::vector<Token> text = prompts_[i];
    const auto first = go_on(expected, length);
    ASSERT_EQ(go_on(run, length), first) << "prompt " << i << ", depth " << depth;
    text.insert(text.end(), first.begin(), first.end());
    text.insert(text.end(), turn.begin(), turn.end());
    must(expected.sync(text));

    SyncOptions options;
    size_t polls = 0;
    options.cancelled = [&] { return ++polls == 1 + i % 3; };
    const auto stopped = run.sync(text, options);
    if (!stopped) {
      ASSERT_EQ(stopped.error().code, ErrorCode::cancelled);
      ++cancelled;
    }
    must(run.sync(text));
    ASSERT_EQ(logits_of(run), logits_of(expected)) << "prompt " << i;
    ASSERT_EQ(go_on(run, 24), go_on(expected, 24)) << "prompt " << i << ", depth " << depth;
    ASSERT_EQ(logits_of(run), logits_of(expected)) << "prompt " << i;
  }
  std::cout << cancelled << " turns were cancelled\n";
  EXPECT_GE(cancelled, prompts_.size() / 20);
}

}  // namespace
}  // namespace ds4
