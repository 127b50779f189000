// A session's state as bytes between a GPU and the CPU, both ways: the same bytes come out again, and what
// follows differs by the rounding of the kernels only.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "support/session_checks.hpp"
#include "support/state_bytes.hpp"
#include "support/tested_device.hpp"

namespace ds4 {
namespace {

using testing::export_all;
using testing::import_all;
using testing::logits_of;
using testing::must;
using testing::StateBytes;

class PortableStateCudaTest : public testing::DeviceTest {
 protected:
  static Engine open(BackendChoice backend) {
    EngineOptions options;
    options.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    options.mtp_path = DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf";
    options.backend = backend;
    return must(Engine::open(options));
  }

  // Text of the model's own kind: with random tokens rounding may send one to another expert.
  static std::vector<Token> text_tokens(const Engine& engine) {
    std::ifstream in(DS4_SOURCE_DIR "/tests/data/nano/calibration.txt", std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(in), {});
    text.resize(8000);
    return engine.tokenizer().encode_rendered(text);
  }

  // Exported by `from`, imported and exported again by `to`; then both take the same tokens.
  static void cross(const Engine& from, const Engine& to) {
    constexpr size_t steps = 12;
    size_t compared = 0, far = 0;
    double worst = 0;
    const std::vector<Token> all = text_tokens(from);
    for (const size_t length : {1ul, 3ul, 4ul, 5ul, 33ul, 127ul, 128ul, 129ul, 256ul, 513ul, 1025ul}) {
      ASSERT_GE(all.size(), length + steps);
      const auto tokens = std::span(all).first(length + steps);
      Session source = must(from.create_session(8192));
      must(source.sync(tokens.first(length)));
      const StateBytes bytes = export_all(from, must(source.snapshot()));
      Session target = import_all(to, bytes);
      ASSERT_EQ(logits_of(target), logits_of(source)) << length;
      ASSERT_EQ(must(target.argmax()), must(source.argmax())) << length;
      ASSERT_TRUE(export_all(to, must(target.snapshot())) == bytes) << length;
      for (size_t i = length; i < tokens.size(); ++i) {
        must(source.eval(tokens[i]));
        must(target.eval(tokens[i]));
        const double distance = testing::relative_l2(logits_of(target), logits_of(source));
        ++compared;
        far += distance > 0.1 ? 1 : 0;
        worst = std::max(worst, distance);
      }
    }
    std::printf("%zu steps compared, %zu above 0.1, worst %.3f\n", compared, far, worst);
    EXPECT_LE(far, 1 + compared / 10);
    EXPECT_LE(worst, 0.5);
  }
};

TEST_F(PortableStateCudaTest, BytesAreTheSameOnBothBackends) {
  const Engine cpu = open(BackendChoice::cpu), gpu = open(BackendChoice::cuda);
  EXPECT_EQ(must(cpu.fingerprint()), must(gpu.fingerprint()));
  EXPECT_EQ(cpu.state_layout().block_bytes(), gpu.state_layout().block_bytes());
  EXPECT_EQ(cpu.state_layout().frontier_bytes(77), gpu.state_layout().frontier_bytes(77));
  cross(cpu, gpu);
  cross(gpu, cpu);
}

// The drafter's rows and streams come along: as good drafts as where they were made.
TEST_F(PortableStateCudaTest, DraftsGoOnOnTheOtherBackend) {
  const Engine cpu = open(BackendChoice::cpu), gpu = open(BackendChoice::cuda);
  const auto prompt = cpu.tokenizer().encode_rendered(
      "<｜begin▁of▁sentence｜><｜User｜>What is 47 + 85?<｜Assistant｜></think>");
  const auto accepted = [](Session& session) {
    session.set_speculation({.depth = 3, .min_margin = 0, .adaptive = false});
    Rng rng(1);
    size_t count = 0;
    while (count < 48) count += must(session.generate({.temperature = 0}, rng, 48 - count)).size();
    return session.speculation().tokens_per_step();
  };
  for (const Engine* from : {&cpu, &gpu}) {
    const Engine& to = from == &cpu ? gpu : cpu;
    Session source = must(from->create_session(1024));
    must(source.sync(prompt));
    Session target = import_all(to, export_all(*from, must(source.snapshot())));
    const double here = accepted(source), there = accepted(target);
    std::printf("tokens a step: %.2f where the state was made, %.2f where it went\n", here, there);
    EXPECT_GT(there, 0.8 * here);
  }
}

}  // namespace
}  // namespace ds4
