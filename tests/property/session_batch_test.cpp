// Sessions that advance together get what each would get alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "support/damaged_model.hpp"
#include "support/session_checks.hpp"

namespace ds4 {
namespace {

using testing::logits_of;
using testing::must;
using testing::random_tokens;

Engine open(const std::string& path = DS4_SOURCE_DIR "/models/nano/nano.gguf") {
  EngineOptions options;
  options.model_path = path;
  options.backend = BackendChoice::cpu;
  options.threads = 2;
  options.prefill_chunk = 256;
  return must(Engine::open(options));
}

void must_each(Result<std::vector<Result<void>>> results) {
  for (const Result<void>& result : must(std::move(results))) must(result);
}

// Batches of every size and composition, in any order, with single steps and prompts in between. Prompts end
// before, at and after ends of windows, and some windows and anchors fall within the test.
TEST(SessionBatch, EveryRowGetsWhatItWouldGetAlone) {
  const Engine engine = open();
  constexpr std::array<size_t, max_batch_rows> prompts{1,   2,   3,   4,   5,   60,  100, 126,
                                                       127, 128, 129, 200, 255, 256, 300, 511};
  std::vector<Session> together, alone;
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (auto* sessions : {&together, &alone}) {
      sessions->push_back(must(engine.create_session(2048)));
      must(sessions->back().sync(random_tokens(prompts[i], i)));
    }
  }
  size_t first = 0;
  for (size_t step = 0; step < 40; ++step) {
    const size_t count = 1 + step % prompts.size();
    const auto tokens = random_tokens(count, 100 + step);
    std::vector<BatchRow> rows;
    std::vector<size_t> which;
    for (size_t row = 0; row < count; ++row) {
      which.push_back((first + 5 * row) % prompts.size());  // 5 and 16 have no common divisor
      rows.push_back({&together[which.back()], tokens[row]});
    }
    first += 3;
    must_each(engine.eval_batch(rows));
    for (size_t row = 0; row < count; ++row) {
      must(alone[which[row]].eval(tokens[row]));
      ASSERT_EQ(together[which[row]].position(), alone[which[row]].position());
      ASSERT_EQ(logits_of(together[which[row]]), logits_of(alone[which[row]])) << "step " << step;
    }
    if (step % 8 != 7) continue;
    for (auto* sessions : {&together, &alone}) {
      Session& session = (*sessions)[step % prompts.size()];
      std::vector<Token> longer(session.tokens().begin(), session.tokens().end());
      longer.resize(longer.size() + 3, 9);
      must(session.sync(longer));
      must((*sessions)[(step + 1) % prompts.size()].eval(17));
    }
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(std::equal(together[i].tokens().begin(), together[i].tokens().end(),
                           alone[i].tokens().begin(), alone[i].tokens().end()));
    for (const size_t position : {prompts[i], prompts[i] / 2, together[i].position() - 1}) {
      ASSERT_EQ(together[i].rewind_cost(position), alone[i].rewind_cost(position)) << i << ": " << position;
    }
  }
}

TEST(SessionBatch, LeavesAnchorsAsEvalDoes) {
  const Engine engine = open();
  Session a = must(engine.create_session(1000)), b = must(engine.create_session(1000));
  must(a.sync(random_tokens(100, 1)));
  must(b.sync(random_tokens(110, 2)));
  for (size_t i = 0; i < 60; ++i) {
    const BatchRow rows[] = {{&a, static_cast<Token>(i)}, {&b, static_cast<Token>(i + 1)}};
    must_each(engine.eval_batch(rows));
  }
  EXPECT_EQ(a.nearest_reachable(159), 128u);
  EXPECT_EQ(b.nearest_reachable(169), 128u);
  const std::vector<Token> tokens(a.tokens().begin(), a.tokens().begin() + 140);
  must(a.rewind(140));
  Session fresh = must(engine.create_session(1000));
  must(fresh.sync(tokens));
  EXPECT_EQ(logits_of(a), logits_of(fresh));
}

TEST(SessionBatch, BadRowsStopTheCallBeforeAnythingIsComputed) {
  const Engine engine = open(), other = open();
  Session a = must(engine.create_session(100)), b = must(engine.create_session(5));
  Session stranger = must(other.create_session(100));
  must(a.sync(random_tokens(10, 1)));
  must(b.sync(random_tokens(4, 2)));
  must(b.eval(1));  // full
  must(stranger.sync(random_tokens(10, 1)));
  const auto before = logits_of(a);
  const auto refused = [&](std::vector<BatchRow> rows, ErrorCode code, const std::string& words) {
    const auto result = engine.eval_batch(rows);
    ASSERT_FALSE(result) << words;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(words), std::string::npos) << result.error().message;
    EXPECT_EQ(a.position(), 10u);
    EXPECT_EQ(logits_of(a), before);
    EXPECT_EQ(stranger.position(), 10u);
  };
  refused({{&a, 1}, {&b, 1}}, ErrorCode::context_full, "row 1 of the batch: the context of 5 tokens is full");
  refused({{&a, 1}, {&stranger, 1}}, ErrorCode::invalid_argument, "row 1 of the batch: the session is of");
  refused({{&a, 1}, {nullptr, 1}}, ErrorCode::invalid_argument, "row 1 of the batch: there is no session");
  refused({{&a, 1}, {&a, 2}}, ErrorCode::invalid_argument, "the same sequence");
  Session c = must(engine.create_session(100));
  refused({{&a, 1}, {&c, 4096}}, ErrorCode::invalid_argument, "token 4096 is outside the vocabulary");
  refused({{&a, 1}, {&c, -1}}, ErrorCode::invalid_argument, "token -1 is outside the vocabulary");
  refused({}, ErrorCode::invalid_argument, "1 to 16 rows");
  std::vector<Session> many;
  std::vector<BatchRow> rows{{&a, 1}};
  for (size_t i = 0; i < max_batch_rows; ++i) many.push_back(must(engine.create_session(100)));
  for (Session& session : many) rows.push_back({&session, 1});
  refused(rows, ErrorCode::invalid_argument, "1 to 16 rows, not 17");
  EXPECT_EQ(many[0].position(), 0u);
}

TEST(SessionBatch, ARowThatComputesNanFailsAlone) {
  constexpr Token poison = 77;
  const testing::DamagedModel model(poison);
  const Engine engine = open(model.path());
  const auto prompt = random_tokens(127, 3);  // the step leaves an anchor where it is sound
  ASSERT_EQ(std::count(prompt.begin(), prompt.end(), poison), 0);
  std::vector<Session> sessions;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(must(engine.create_session(500)));
    must(sessions.back().sync(prompt));
  }
  const BatchRow rows[] = {{&sessions[0], 5}, {&sessions[1], poison}, {&sessions[2], 6}};
  const auto results = must(engine.eval_batch(rows));
  ASSERT_EQ(results.size(), 3u);
  EXPECT_TRUE(results[0]);
  ASSERT_FALSE(results[1]);
  EXPECT_EQ(results[1].error().code, ErrorCode::not_finite);
  EXPECT_EQ(results[1].error().message.rfind("position 128: the model computed NaN", 0), 0u);
  EXPECT_TRUE(results[2]);
  for (const size_t i : {0ul, 2ul}) {
    Session alone = must(engine.create_session(500));
    must(alone.sync(prompt));
    must(alone.eval(rows[i].token));
    EXPECT_EQ(logits_of(sessions[i]), logits_of(alone));
    EXPECT_EQ(sessions[i].nearest_reachable(128), 128u);
  }
  EXPECT_EQ(sessions[1].position(), 128u);
  EXPECT_EQ(sessions[1].nearest_reachable(128), 127u);
  EXPECT_EQ(sessions[1].rewind_cost(128), std::nullopt);
  must(sessions[1].rewind(127));
  must(sessions[1].eval(5));
  EXPECT_EQ(logits_of(sessions[1]), logits_of(sessions[0]));
}

}  // namespace
}  // namespace ds4
