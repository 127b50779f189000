// States that a session was asked to keep: going back to them evaluates nothing, and is exact.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "ds4/engine.hpp"
#include "support/session_checks.hpp"

namespace ds4 {
namespace {

using testing::logits_of;
using testing::must;
using testing::random_tokens;

class KeptAnchorsTest : public ::testing::Test {
 protected:
  static EngineOptions options_for(uint32_t chunk) {
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.backend = BackendChoice::cpu;
    options.threads = 2;
    options.prefill_chunk = chunk;
    return options;
  }
  static Engine open(uint32_t chunk) { return must(Engine::open(options_for(chunk))); }

  std::vector<float> fresh(std::span<const Token> tokens) const {
    Session session = must(engine.create_session(8192));
    must(session.sync(tokens));
    return logits_of(session);
  }

  const Engine engine = open(64);
};

// Long after ordinary anchors near it are thinned out.
TEST_F(KeptAnchorsTest, StaysHoweverManyTokensFollow) {
  const auto tokens = random_tokens(1800, 1);
  Session session = must(engine.create_session(8192)), plain = must(engine.create_session(8192));
  const size_t kept = 300;
  must(session.sync(std::span(tokens).first(kept)));
  must(session.keep_anchor());
  must(session.sync(tokens));
  must(plain.sync(std::span(tokens).first(kept)));
  must(plain.sync(tokens));
  EXPECT_LT(plain.nearest_reachable(kept), kept);  // or this test shows nothing
  EXPECT_EQ(session.nearest_reachable(kept), kept);
  EXPECT_EQ(session.rewind_cost(kept), 0u);
  EXPECT_EQ(session.rewind_cost(kept + 15), 15u);  // the next chunk ends at 320
  must(session.rewind(kept));
  EXPECT_EQ(session.position(), kept);
  EXPECT_EQ(logits_of(session), fresh(std::span(tokens).first(kept)));
  auto other = tokens;
  other[kept] = (other[kept] + 1) % 4096;
  must(session.sync(tokens));
  const SyncStats stats = must(session.sync(std::span(other).first(kept + 100)));
  EXPECT_EQ(stats.reused, kept);
  EXPECT_EQ(logits_of(session), fresh(std::span(other).first(kept + 100)));
}

// What they take beside the present state, and at most what the plan says.
TEST_F(KeptAnchorsTest, TheirBytesAreTold) {
  const auto tokens = random_tokens(1800, 3);
  Session session = must(engine.create_session(8192));
  EXPECT_EQ(session.anchor_bytes(), 0u);
  must(session.sync(std::span(tokens).first(300)));
  const size_t first = session.anchor_bytes();
  must(session.sync(tokens));
  const MemoryPlan plan = must(Engine::plan_memory(options_for(64)));
  EXPECT_GT(session.anchor_bytes(), first);
  EXPECT_GT(session.anchor_bytes(), plan.anchor_bytes / 2);
  EXPECT_LE(session.anchor_bytes(), plan.anchor_bytes);
  session.reset();
  EXPECT_EQ(session.anchor_bytes(), 0u);
}

TEST_F(KeptAnchorsTest, CostsAreThoseOfRewindAndSync) {
  const auto tokens = random_tokens(700, 2);
  const Engine small_chunks = open(16);
  Session session = must(small_chunks.create_session(8192));
  EXPECT_EQ(session.nearest_reachable(10), 0u);
  EXPECT_EQ(session.rewind_cost(0), 0u);
  EXPECT_EQ(session.rewind_cost(1), std::nullopt);
  must(session.sync(tokens));
  EXPECT_EQ(session.nearest_reachable(9999), 700u);
  EXPECT_EQ(session.rewind_cost(701), std::nullopt);
  size_t refused = 0;
  for (size_t position = 40; position <= 700; position += 61) {
    Session copy = must(small_chunks.create_session(8192));
    must(copy.sync(tokens));
    ASSERT_EQ(copy.rewind_cost(position), session.rewind_cost(position));
    const std::optional<size_t> cost = copy.rewind_cost(position);
    const size_t from = copy.nearest_reachable(position);
    EXPECT_EQ(copy.rewind(position).has_value(), cost.has_value()) << position;
    refused += cost ? 0 : 1;
    EXPECT_EQ(cost.value_or(position - from), position - from);
    auto other = tokens;
    other[position - 1] = (other[position - 1] + 1) % 4096;
    must(copy.sync(tokens));
    const size_t expected = copy.nearest_reachable(copy.common_prefix(other));
    EXPECT_EQ(must(copy.sync(std::span(other).first(position))).reused, expected) << position;
  }
  EXPECT_GT(refused, 0u);
}

// A prompt whose parts another prompt may share: kept while it is evaluated, at exact positions.
TEST_F(KeptAnchorsTest, SyncKeepsStatesOnItsWay) {
  const auto tokens = random_tokens(1500, 3);
  Session session = must(engine.create_session(8192));
  SyncOptions options;
  options.keep_anchors = {777, 1, 300, 130, 1500, 5000, 0};
  size_t last = 0;
  options.on_progress = [&](size_t done, size_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 1500u);
    last = done;
  };
  must(session.sync(tokens, options));
  EXPECT_EQ(last, 1500u);
  EXPECT_EQ(logits_of(session), fresh(tokens));
  for (const size_t kept : {1ul, 130ul, 300ul, 777ul, 1500ul})
    EXPECT_EQ(session.nearest_reachable(kept), kept);
  for (size_t i = 0; i < 300; ++i) must(session.eval(static_cast<Token>(i)));
  for (const size_t kept : {1500ul, 777ul, 300ul, 130ul, 1ul}) {
    ASSERT_EQ(session.rewind_cost(kept), 0u) << kept;
    must(session.rewind(kept));
    EXPECT_EQ(logits_of(session), fresh(std::span(tokens).first(kept))) << kept;
  }

  // Where a state happens to be kept, it stays; where none is, the position is passed over.
  must(session.sync(tokens));
  options.keep_anchors = {1500, 1111};
  last = 0;
  must(session.sync(tokens, options));
  EXPECT_LT(session.nearest_reachable(1111), 1111u);
}

TEST_F(KeptAnchorsTest, TheOldestOfTooManyBecomesAnOrdinaryOne) {
  const auto tokens = random_tokens(2500, 4);
  Session session = must(engine.create_session(8192));
  SyncOptions options;
  for (size_t i = 0; i <= max_kept_anchors; ++i) options.keep_anchors.push_back(50 + 30 * i);
  must(session.sync(tokens, options));
  EXPECT_EQ(session.nearest_reachable(50), 0u);  // thinned out since
  for (size_t i = 1; i <= max_kept_anchors; ++i) {
    EXPECT_EQ(session.nearest_reachable(50 + 30 * i), 50 + 30 * i);
  }
}

TEST_F(KeptAnchorsTest, AreGoneWithWhatCameAfterAPosition) {
  const auto tokens = random_tokens(600, 5);
  Session session = must(engine.create_session(8192));
  EXPECT_EQ(session.keep_anchor().error().code, ErrorCode::invalid_argument);
  must(session.sync(std::span(tokens).first(500)));
  must(session.keep_anchor());
  must(session.keep_anchor());
  const Snapshot snapshot = must(session.snapshot());
  must(session.rewind(400));
  must(session.sync(tokens));
  EXPECT_EQ(session.nearest_reachable(511), 448u);  // the end of a chunk
  must(session.restore(snapshot));
  EXPECT_EQ(session.nearest_reachable(499), 0u);
  session.reset();
  EXPECT_EQ(session.nearest_reachable(600), 0u);
}

}  // namespace
}  // namespace ds4
