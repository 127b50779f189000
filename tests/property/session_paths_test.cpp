// Sessions: reuse, rewind, snapshots, cancellation and threads give what a fresh session would give: the same
// bits on the CPU; on a GPU, for which this is built once more, to rounding where other kernels computed it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ds4/engine.hpp"
#include "ds4/sampling.hpp"
#include "support/damaged_model.hpp"
#include "support/loaded_model.hpp"
#include "support/session_checks.hpp"
#include "support/tested_device.hpp"

namespace ds4 {
namespace {

using testing::logits_of;
using testing::must;
using testing::random_tokens;

class SessionPathsTest : public testing::DeviceTest {
 protected:
  static Engine open(uint32_t chunk = 4096, unsigned threads = 2) {
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = testing::tested_backend;
    options.threads = threads;
    options.prefill_chunk = chunk;
    return must(Engine::open(options));
  }

  // Logits of a fresh session after these tokens.
  static std::vector<float> fresh(const Engine& engine, std::span<const Token> tokens) {
    Session session = must(engine.create_session(8192));
    must(session.sync(tokens));
    return logits_of(session);
  }

  static void expect_fresh(const Session& session, const Engine& engine, std::span<const Token> tokens) {
    const auto ours = logits_of(session), expected = fresh(engine, tokens);
    if (!testing::on_gpu) {
      EXPECT_EQ(ours, expected) << tokens.size();
      return;
    }
    const double distance = testing::relative_l2(ours, expected);
    ++compared_;
    far_ += distance > 0.1 ? 1 : 0;
    EXPECT_LE(distance, 0.5) << tokens.size();
  }

  // Rounding may send a token to another expert: at about 3 of 100 places with random tokens.
  void TearDown() override {
    EXPECT_LE(far_, 1 + compared_ / 10) << "of " << compared_;
    far_ = compared_ = 0;
  }

 private:
  static inline size_t compared_ = 0, far_ = 0;
};

TEST_F(SessionPathsTest, SyncKeepsWhatItCan) {
  const Engine engine = open(256);
  Session session = must(engine.create_session(4096));
  auto prompt = random_tokens(600, 1);
  EXPECT_EQ(must(session.sync(prompt)).reused, 0u);
  EXPECT_EQ(must(session.sync(prompt)).evaluated, 0u);

  auto longer = prompt;
  const auto more = random_tokens(50, 2);
  longer.insert(longer.end(), more.begin(), more.end());
  EXPECT_EQ(must(session.sync(longer)).reused, 600u);
  expect_fresh(session, engine, longer);

  // Another continuation of the first prompt goes back to its end, an edit inside it to the chunk before the
  // edit.
  auto other = prompt;
  other.push_back(7);
  EXPECT_EQ(must(session.sync(other)).reused, 600u);
  expect_fresh(session, engine, other);
  other[400] = 8;
  EXPECT_EQ(must(session.sync(other)).reused, 256u);
  expect_fresh(session, engine, other);
  other[10] = 9;
  EXPECT_EQ(must(session.sync(other)).reused, 0u);
  expect_fresh(session, engine, other);
  EXPECT_EQ(std::vector<Token>(session.tokens().begin(), session.tokens().end()), other);
}

TEST_F(SessionPathsTest, RewindIsExact) {
  const Engine engine = open(512);
  Session session = must(engine.create_session(4096));
  const auto tokens = random_tokens(900, 3);
  must(session.sync(std::span(tokens).first(700)));
  for (size_t i = 700; i < tokens.size(); ++i) must(session.eval(tokens[i]));
  for (const size_t position :
       {899ul, 896ul, 895ul, 801ul, 768ul, 701ul, 700ul, 699ul, 600ul, 512ul, 511ul, 3ul}) {
    must(session.rewind(position));
    ASSERT_EQ(session.position(), position);
    expect_fresh(session, engine, std::span(tokens).first(position));
  }
  must(session.rewind(0));
  EXPECT_TRUE(must(session.logits()).empty());
  must(session.sync(tokens));
  expect_fresh(session, engine, tokens);
  const auto beyond = session.rewind(901);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::invalid_argument);
}

TEST_F(SessionPathsTest, ForksGoOnIndependently) {
  const Engine engine = open(256);
  Session trunk = must(engine.create_session(4096));
  const auto tokens = random_tokens(610, 21);
  must(trunk.sync(std::span(tokens).first(600)));
  for (size_t i = 600; i < tokens.size(); ++i) must(trunk.eval(tokens[i]));
  const std::vector<float> before = logits_of(trunk);

  Session present = must(trunk.fork(5000));
  EXPECT_EQ(present.position(), tokens.size());
  EXPECT_EQ(logits_of(present), before);
  Session branch = must(trunk.fork(550));
  EXPECT_EQ(branch.position(), 512u);
  auto other = tokens;
  other.resize(560);
  other.back() = 9;
  EXPECT_EQ(must(branch.sync(other)).reused, 512u);
  expect_fresh(branch, engine, other);
  // A fork has the states to go back to that its origin has.
  EXPECT_EQ(branch.nearest_reachable(300), 256u);
  must(present.rewind(300));
  expect_fresh(present, engine, std::span(tokens).first(300));

  EXPECT_EQ(must(trunk.fork(100)).position(), 0u);
  EXPECT_EQ(logits_of(trunk), before);
  must(trunk.eval(3));
  other = tokens;
  other.push_back(3);
  expect_fresh(trunk, engine, other);
}

TEST_F(SessionPathsTest, RewindFarFromAnyAnchorSaysWhereItCanGo) {
  const Engine engine = open(128);
  Session session = must(engine.create_session(8192));
  const auto tokens = random_tokens(5000, 4);
  must(session.sync(tokens));  // 40 chunks, more than there are anchors
  size_t refused = 0;
  for (size_t position = 64; position < 4000; position += 128) {
    Session copy_of = must(engine.create_session(8192));
    must(copy_of.restore(must(session.snapshot())));
    const auto done = session.rewind(position);
    if (done) {
      EXPECT_EQ(session.position(), position);
      must(session.sync(tokens));
      continue;
    }
    ++refused;
    EXPECT_EQ(done.error().code, ErrorCode::no_state);
    EXPECT_NE(done.error().message.find("can be reached"), std::string::npos);
    EXPECT_EQ(session.position(), tokens.size());
  }
  EXPECT_GT(refused, 0u);
}

TEST_F(SessionPathsTest, SnapshotsBranch) {
  const Engine engine = open();
  Session session = must(engine.create_session(4096));
  const auto tokens = random_tokens(333, 5), left = random_tokens(140, 6), right = random_tokens(140, 7);
  must(session.sync(tokens));
  const Snapshot snapshot = must(session.snapshot());
  EXPECT_EQ(snapshot.tokens(), 333u);
  Session other = must(engine.create_session(1000));
  for (size_t i = 0; i < left.size(); ++i) {
    must(session.eval(left[i]));
    if (i == 70) must(other.restore(snapshot));
    if (i >= 70) must(other.eval(right[i - 70]));
  }
  auto expected = tokens;
  expected.insert(expected.end(), right.begin(), right.begin() + 70);
  expect_fresh(other, engine, expected);
  must(session.restore(snapshot));
  expect_fresh(session, engine, tokens);

  Session small = must(engine.create_session(300));
  EXPECT_EQ(small.restore(snapshot).error().code, ErrorCode::context_full);
  const Engine stranger = open();
  Session foreign = must(stranger.create_session(4096));
  EXPECT_EQ(foreign.restore(snapshot).error().code, ErrorCode::invalid_argument);
}

TEST_F(SessionPathsTest, BoundsAreErrorsAndChangeNothing) {
  const Engine engine = open();
  Session session = must(engine.create_session(100));
  auto tokens = random_tokens(100, 8);
  EXPECT_EQ(session.sync(tokens).error().code, ErrorCode::context_full);
  EXPECT_EQ(session.sync({}).error().code, ErrorCode::invalid_argument);
  tokens.resize(99);
  must(session.sync(tokens));
  tokens[50] = 4096;
  EXPECT_EQ(session.sync(tokens).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(session.eval(-1).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(session.position(), 99u);
  must(session.eval(5));
  EXPECT_EQ(session.eval(5).error().code, ErrorCode::context_full);
  EXPECT_EQ(session.position(), 100u);
  EXPECT_FALSE(engine.create_session(1));
  EXPECT_FALSE(engine.create_session((1ull << 20) + 1));
}

TEST_F(SessionPathsTest, ARejectedTokenKeepsTheLogits) {
  const Engine engine = open();
  Session session = must(engine.create_session(100));
  must(session.sync(random_tokens(10, 8)));
  const auto before = logits_of(session);
  EXPECT_FALSE(session.eval(4096));
  EXPECT_EQ(logits_of(session), before);
}

TEST_F(SessionPathsTest, CancelledSyncKeepsWholeChunks) {
  const Engine engine = open(128);
  Session session = must(engine.create_session(4096));
  const auto tokens = random_tokens(1000, 9);
  SyncOptions options;
  int polls = 0;
  options.cancelled = [&] { return ++polls == 20; };  // six layers a chunk: in the fourth chunk
  const auto done = session.sync(tokens, options);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::cancelled);
  EXPECT_EQ(session.position(), 384u);
  EXPECT_EQ(must(session.sync(tokens)).reused, 384u);
  expect_fresh(session, engine, tokens);
}

TEST_F(SessionPathsTest, ProgressGrowsToTheEnd) {
  const Engine engine = open(128);
  Session session = must(engine.create_session(4096));
  std::vector<size_t> seen;
  SyncOptions options;
  options.on_progress = [&](size_t done, size_t total) {
    EXPECT_EQ(total, 300u);
    seen.push_back(done);
  };
  must(session.sync(random_tokens(300, 10), options));
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.front(), 0u);
  EXPECT_EQ(seen.back(), 300u);
}

TEST_F(SessionPathsTest, SessionsOfDifferentThreadsDoNotMix) {
  const Engine engine = open();
  constexpr size_t threads = 4;
  std::vector<std::vector<Token>> expected(threads), got(threads);
  const auto generate = [&](size_t i) {
    Session session = must(engine.create_session(1024));
    must(session.sync(random_tokens(100 + 50 * i, 20 + i)));
    std::vector<Token> tokens;
    for (int step = 0; step < 25; ++step) {
      tokens.push_back(must(session.argmax()));
      must(session.eval(tokens.back()));
    }
    return tokens;
  };
  for (size_t i = 0; i < threads; ++i) expected[i] = generate(i);
  std::vector<std::thread> running;
  for (size_t i = 0; i < threads; ++i) running.emplace_back([&, i] { got[i] = generate(i); });
  for (std::thread& thread : running) thread.join();
  EXPECT_EQ(got, expected);
}

// Where the logits live does not matter, and neither does how a session came to its position.
TEST_F(SessionPathsTest, SampledTextIsTheSameAgain) {
  const Engine engine = open();
  const auto prompt = random_tokens(60, 13);
  for (const SamplingParams& params : {SamplingParams{.temperature = 0}, SamplingParams{.temperature = 1.5f},
                                       SamplingParams{.temperature = 1.5f, .top_k = 50, .top_p = 0.9f},
                                       SamplingParams{.top_p = 0.9f, .min_p = 0}}) {
    const auto generate = [&](Session& session, Rng& rng, size_t count) {
      std::vector<Token> tokens;
      for (size_t i = 0; i < count; ++i) {
        Rng same = rng;
        tokens.push_back(must(session.sample(params, rng)));
        EXPECT_EQ(sample(must(session.logits()), params, same), tokens.back());
        EXPECT_EQ(same.state(), rng.state());
        must(session.eval(tokens.back()));
      }
      return tokens;
    };
    Session first = must(engine.create_session(512)), second = must(engine.create_session(512));
    must(first.sync(prompt));
    must(second.sync(prompt));
    Rng rng(7), again(7);
    EXPECT_EQ(generate(first, rng, 16), generate(second, again, 16));
    const Snapshot snapshot = must(first.snapshot());
    const auto expected = generate(first, rng, 20);
    Rng from_snapshot = again, from_rewind = again;
    must(second.restore(snapshot));
    EXPECT_EQ(generate(second, from_snapshot, 20), expected);
    must(second.rewind(76));  // 16 tokens again, which a GPU too evaluates as it decodes
    EXPECT_EQ(generate(second, from_rewind, 20), expected);
  }
}

TEST_F(SessionPathsTest, AStepThatComputesNanIsReportedAndCanBeLeft) {
  constexpr Token poison = 77;
  const testing::DamagedModel model(poison);
  EngineOptions options;
  options.model_path = model.path();
  options.backend = testing::tested_backend;
  options.prefill_chunk = 64;
  const Engine engine = must(Engine::open(options));
  auto prompt = random_tokens(100, 14);
  std::replace(prompt.begin(), prompt.end(), poison, poison + 1);
  const auto expected = fresh(engine, prompt);

  Session session = must(engine.create_session(512));
  must(session.sync(prompt));
  const auto step = session.eval(poison);
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, ErrorCode::not_finite);
  EXPECT_EQ(step.error().message.rfind("position 101: the model computed NaN", 0), 0u)
      << step.error().message;
  EXPECT_EQ(session.position(), 101u);
  Rng rng(5);
  EXPECT_EQ(session.argmax().error().code, ErrorCode::not_finite);
  EXPECT_EQ(session.sample({}, rng).error().code, ErrorCode::not_finite);
  EXPECT_EQ(rng.state(), 5u);
  EXPECT_TRUE(std::isnan(logits_of(session)[0]));
  EXPECT_EQ(session.rewind(101).error().code, ErrorCode::not_finite);
  EXPECT_FALSE(session.eval(3));  // what follows is no better

  must(session.rewind(100));
  EXPECT_EQ(logits_of(session), expected);
  EXPECT_TRUE(session.argmax());
  EXPECT_FALSE(session.eval(poison));
  must(session.sync(prompt));  // a prefix of what is there
  EXPECT_EQ(logits_of(session), expected);

  // In a prompt, in its first chunk or a later one; the way back is the last good state.
  for (const size_t where : {10ul, 80ul}) {
    auto bad = prompt;
    bad[where] = poison;
    EXPECT_EQ(session.sync(bad).error().code, ErrorCode::not_finite) << where;
    EXPECT_EQ(session.sync(bad).error().code, ErrorCode::not_finite) << where;
    must(session.sync(prompt));
    EXPECT_EQ(logits_of(session), expected) << where;
  }
}

TEST_F(SessionPathsTest, AMillionTokensOfContextCostNothingUntilUsed) {
  const Engine engine = open();
  Session large = must(engine.create_session(1 << 20)), small = must(engine.create_session(256));
  EXPECT_EQ(large.state_bytes(), small.state_bytes());
  must(large.sync(random_tokens(200, 11)));
  must(small.sync(random_tokens(200, 11)));
  EXPECT_EQ(large.state_bytes(), small.state_bytes());
  if (!testing::on_gpu) {
    EXPECT_LT(large.state_bytes(), 4u << 20);
  }
}

TEST_F(SessionPathsTest, SessionsKeepTheModelAlive) {
  auto engine = std::make_unique<Engine>(open());
  Session session = must(engine->create_session(256));
  engine.reset();
  must(session.sync(random_tokens(20, 12)));
  EXPECT_EQ(must(session.logits()).size(), 4096u);
}

}  // namespace
}  // namespace ds4
