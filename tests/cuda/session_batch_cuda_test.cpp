// Sessions on a GPU: together as alone, choices among allowed tokens, and states that are kept.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.hpp"
#include "ds4/engine.hpp"
#include "support/session_checks.hpp"

namespace ds4 {
namespace {

using testing::logits_of;
using testing::must;
using testing::random_tokens;

/// Holds all memory of the device that is left, down to small pieces.
class FullDevice {
 public:
  FullDevice() {
    for (size_t bytes = size_t{64} << 30; bytes >= size_t{64} << 10; bytes /= 2) {
      void* piece = nullptr;
      while (cudaMalloc(&piece, bytes) == cudaSuccess) pieces_.push_back(piece);
      (void)cudaGetLastError();
    }
  }
  FullDevice(const FullDevice&) = delete;
  FullDevice& operator=(const FullDevice&) = delete;
  ~FullDevice() {
    for (void* piece : pieces_) cudaFree(piece);
  }

 private:
  std::vector<void*> pieces_;
};

class SessionBatchCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda::available(&why)) GTEST_SKIP() << why;
    engine = std::make_unique<Engine>(open(4096));
  }

  static Engine open(uint32_t chunk) {
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = BackendChoice::cuda;
    options.prefill_chunk = chunk;
    return must(Engine::open(options));
  }

  Session synced(std::span<const Token> prompt) const {
    Session session = must(engine->create_session(4096));
    must(session.sync(prompt));
    return session;
  }

  std::unique_ptr<Engine> engine;
};

TEST_F(SessionBatchCudaTest, EveryRowGetsWhatItWouldGetAlone) {
  constexpr std::array<size_t, max_batch_rows> prompts{1,   2,   3,   4,   5,   60,  126, 127,
                                                       128, 129, 250, 255, 256, 300, 511, 1030};
  std::vector<Session> together, alone;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto prompt = random_tokens(prompts[i], i);
    together.push_back(synced(prompt));
    alone.push_back(synced(prompt));
  }
  for (size_t step = 0; step < 48; ++step) {
    const size_t count = 1 + step % prompts.size();
    const auto tokens = random_tokens(count, 100 + step);
    std::vector<BatchRow> rows;
    std::vector<size_t> which;
    for (size_t row = 0; row < count; ++row) {
      which.push_back((3 * step + 5 * row) % prompts.size());  // 5 and 16 have no common divisor
      rows.push_back({&together[which.back()], tokens[row]});
    }
    for (const auto& result : must(engine->eval_batch(rows))) must(result);
    for (size_t row = 0; row < count; ++row) {
      must(alone[which[row]].eval(tokens[row]));
      ASSERT_EQ(logits_of(together[which[row]]), logits_of(alone[which[row]])) << "step " << step;
      ASSERT_EQ(must(together[which[row]].argmax()), must(alone[which[row]].argmax()));
    }
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(together[i].nearest_reachable(together[i].position() - 1),
              alone[i].nearest_reachable(alone[i].position() - 1));
  }
}

TEST_F(SessionBatchCudaTest, AllowedTokensAreChosenAsOnTheHost) {
  const Session session = synced(random_tokens(300, 7));
  const std::vector<float> logits = logits_of(session);
  std::vector<uint64_t> allowed((logits.size() + 63) / 64);
  std::vector<float> masked(logits.size(), -std::numeric_limits<float>::infinity());
  for (size_t token = 5; token < logits.size(); token += 7) {
    allowed[token / 64] |= uint64_t{1} << (token % 64);
    masked[token] = logits[token];
  }
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0}, SamplingParams{.temperature = 20, .min_p = 0},
        SamplingParams{.temperature = 5, .top_k = 40, .top_p = 0.9f}}) {
    Rng rng(9), same(9);
    for (int draw = 0; draw < 30; ++draw) {
      ASSERT_EQ(must(session.sample(params, rng, allowed)), sample(masked, params, same));
    }
    EXPECT_EQ(rng.state(), same.state());
  }
}

// Prefill that stops at more than 16 tokens' distance has the bits of one that does not.
TEST_F(SessionBatchCudaTest, KeptStatesCostNothingAndAreExact) {
  const auto tokens = random_tokens(1500, 8);
  SyncOptions options;
  options.keep_anchors = {300, 777};
  Session session = must(engine->create_session(4096));
  must(session.sync(tokens, options));
  EXPECT_EQ(logits_of(session), logits_of(synced(tokens)));
  for (size_t i = 0; i < 600; ++i) must(session.eval(static_cast<Token>(i)));
  for (const size_t kept : {777ul, 300ul}) {
    ASSERT_EQ(session.rewind_cost(kept), 0u);
    must(session.rewind(kept));
    EXPECT_EQ(logits_of(session), logits_of(synced(std::span(tokens).first(kept)))) << kept;
  }
  EXPECT_EQ(must(session.sync(tokens)).reused, 300u);
  EXPECT_EQ(logits_of(session), logits_of(synced(tokens)));
}

// A prompt or a step for which there is no memory leaves its sessions as they were; what needs none goes on.
TEST_F(SessionBatchCudaTest, WithoutMemorySessionsStayAsTheyWere) {
  const Engine small_chunks = open(512);
  const auto tokens = random_tokens(60000, 9);
  const auto begin = [&](Session& session, Session& other) {
    must(session.sync(std::span(tokens).first(4300)));
    must(other.sync(std::span(tokens).first(600)));
    const BatchRow rows[] = {{&session, 5}, {&other, 6}};  // the device keeps a program of this size
    for (const auto& result : must(small_chunks.eval_batch(rows))) must(result);
    must(session.eval(5));
  };
  Session session = must(small_chunks.create_session(100000));
  Session other = must(small_chunks.create_session(100000));
  begin(session, other);
  std::vector<Token> prompt(session.tokens().begin(), session.tokens().end());
  prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  size_t steps = 0;
  {
    const FullDevice full;
    EXPECT_EQ(small_chunks.create_session(100).error().code, ErrorCode::out_of_memory);
    const auto synced = session.sync(prompt);  // chunk after chunk until the pages end
    ASSERT_FALSE(synced);
    EXPECT_EQ(synced.error().code, ErrorCode::out_of_memory) << synced.error().message;
    ASSERT_GT(session.position(), 4302u);
    prompt.resize(session.position());
    for (;; ++steps) {
      const BatchRow rows[] = {{&session, 11}, {&other, 12}};
      const auto results = small_chunks.eval_batch(rows);
      if (!results) {
        EXPECT_EQ(results.error().code, ErrorCode::out_of_memory) << results.error().message;
        break;
      }
      ASSERT_LT(steps, 20000u) << "memory does not end";
    }
    ASSERT_EQ(session.position(), prompt.size() + steps);
    ASSERT_EQ(other.position(), 601 + steps);
  }
  must(session.eval(13));
  must(other.eval(13));
  printf("memory ended after %zu tokens and %zu steps\n", prompt.size(), steps);

  Session same = must(small_chunks.create_session(100000));
  Session same_other = must(small_chunks.create_session(100000));
  begin(same, same_other);
  must(same.sync(prompt));
  for (size_t step = 0; step < steps; ++step) {
    must(same.eval(11));
    must(same_other.eval(12));
  }
  must(same.eval(13));
  must(same_other.eval(13));
  EXPECT_EQ(logits_of(session), logits_of(same));
  EXPECT_EQ(logits_of(other), logits_of(same_other));
}

}  // namespace
}  // namespace ds4
