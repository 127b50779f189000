#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ds4/engine.hpp"
#include "ds4/memory.hpp"

namespace ds4 {
namespace {

using ::testing::HasSubstr;

MemoryPlan plan() {
  MemoryPlan p;
  p.device = "cuda (a card)";
  p.weights = {{"routed experts", uint64_t{60} << 30}, {"output", uint64_t{500} << 20}};
  p.scratch_bytes = uint64_t{2} << 30;
  p.session_bytes = uint64_t{16} << 20;
  p.anchor_bytes = uint64_t{48} << 20;
  p.bytes_per_token = 3514;
  p.available_bytes = uint64_t{80} << 30;
  return p;
}

TEST(MemoryPlan, AddsUp) {
  const MemoryPlan p = plan();
  EXPECT_EQ(p.weight_bytes(), (uint64_t{60} << 30) + (uint64_t{500} << 20));
  EXPECT_EQ(p.left_bytes(), (uint64_t{18} << 30) - (uint64_t{500} << 20));
  EXPECT_EQ(p.session_total_bytes(0), uint64_t{64} << 20);
  EXPECT_EQ(p.session_total_bytes(1000), (uint64_t{64} << 20) + 3514000);
  EXPECT_EQ(p.sessions(0), p.left_bytes() / (uint64_t{64} << 20));
  EXPECT_EQ(p.sessions(1000000), 5u);  // 17.5 GiB over 3.33 GiB
}

TEST(MemoryPlan, NothingIsLeftWhenWeightsDoNotFit) {
  MemoryPlan p = plan();
  p.available_bytes = uint64_t{62} << 30;
  EXPECT_EQ(p.left_bytes(), 0u);
  EXPECT_EQ(p.sessions(4096), 0u);
  const std::string table = memory_table(p, 4096);
  EXPECT_THAT(table, HasSubstr("missing                                 500.00 MiB\n"));
  EXPECT_THAT(table, ::testing::Not(HasSubstr("left for sessions")));
}

TEST(MemoryPlan, TableNamesEveryPart) {
  const std::string table = memory_table(plan(), 1000000);
  EXPECT_THAT(table, HasSubstr("memory on cuda (a card)\n"));
  EXPECT_THAT(table, HasSubstr("free now                                 80.00 GiB\n"));
  EXPECT_THAT(table, HasSubstr("weights: routed experts                  60.00 GiB\n"));
  EXPECT_THAT(table, HasSubstr("scratch                                   2.00 GiB\n"));
  EXPECT_THAT(table, HasSubstr("left for sessions                        17.51 GiB\n"));
  EXPECT_THAT(table, HasSubstr("a session of 1000000 tokens\n"));
  EXPECT_THAT(table, HasSubstr("state per token                             3514 B\n"));
  EXPECT_THAT(table, HasSubstr("such sessions fit                                5\n"));
}

TEST(MemoryPlan, OfAModelOnTheCpu) {
  EngineOptions options;
  options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
  options.backend = BackendChoice::cpu;
  const auto planned = Engine::plan_memory(options);
  ASSERT_TRUE(planned) << planned.error().message;
  EXPECT_EQ(planned->device, "cpu");
  const auto engine = Engine::open(options);
  ASSERT_TRUE(engine);
  EXPECT_EQ(planned->weight_bytes(), engine->info().weight_bytes);
  EXPECT_DOUBLE_EQ(planned->bytes_per_token, engine->info().state_bytes_per_token);

  // A session keeps to what was said.
  auto session = engine->create_session(4096);
  ASSERT_TRUE(session);
  const std::vector<Token> tokens(3000, 100);
  ASSERT_TRUE(session->sync(tokens));
  const uint64_t promised = planned->session_total_bytes(tokens.size()) - planned->anchor_bytes;
  EXPECT_LE(session->state_bytes(), promised + promised / 4);  // pages are taken whole
  EXPECT_GE(session->state_bytes(), promised / 2);

  options.prefill_chunk = 256;
  EXPECT_LT(Engine::plan_memory(options)->scratch_bytes, planned->scratch_bytes / 4);
  options.model_path = "no such file";
  EXPECT_EQ(Engine::plan_memory(options).error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace ds4
