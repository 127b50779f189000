// What is collected of the experts' inputs on the GPU: that of the CPU, the same on every run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <span>
#include <vector>

#include "nano_pair.hpp"

namespace ds4 {
namespace {

using testing::must;
using testing::random_tokens;

class ExpertInputsCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda::available(&why)) GTEST_SKIP() << why;
  }

  static ExpertInputSums collect(const backend::Backend& backend, std::span<const Token> tokens,
                                 size_t chunk) {
    const auto sequence = must(backend.create_sequence());
    const auto inputs = must(backend.create_expert_inputs());
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      backend::EvalControl control;
      control.expert_inputs = inputs.get();
      must(backend.prefill(*sequence, tokens.subspan(begin, std::min(chunk, tokens.size() - begin)), 0, {},
                           control));
    }
    return must(backend.read(*inputs));
  }

  static uint64_t count(const ExpertInputSums& sums, size_t layer) {
    const auto begin = sums.tokens.begin() + static_cast<ptrdiff_t>(layer * sums.experts);
    return std::accumulate(begin, begin + sums.experts, uint64_t{0});
  }

  // Distance of the mean squares of an expert's columns, relative to the first ones.
  static double distance(std::span<const double> a, uint64_t of_a, std::span<const double> b, uint64_t of_b) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double x = a[i] / static_cast<double>(of_a), y = b[i] / static_cast<double>(of_b);
      difference += (x - y) * (x - y);
      norm += x * x;
    }
    return std::sqrt(difference / norm);
  }
};

TEST_F(ExpertInputsCudaTest, AgreesWithTheCpu) {
  const testing::NanoPair nano(testing::bundled);
  cpu::CpuOptions options;
  options.exact_activations = true;
  const testing::LoadedModel exact(testing::bundled, "", options);
  const auto tokens = random_tokens(1500, 3);
  const auto cpu = collect(*exact.backend, tokens, 1500), gpu = collect(*nano.gpu, tokens, 1500);
  ASSERT_EQ(gpu.tokens.size(), cpu.tokens.size());
  ASSERT_EQ(gpu.gate_up.size(), cpu.gate_up.size());
  ASSERT_EQ(gpu.down.size(), cpu.down.size());
  // Where two experts are nearly equal a token may go to another one, but not in layers routed by token id.
  constexpr uint64_t enough = 100;  // tokens, so that one that moved makes little difference
  for (size_t l = 0; l < cpu.layers; ++l) {
    const bool by_id = l < exact.shape.hash_layers;
    EXPECT_EQ(count(gpu, l), tokens.size() * nano.cpu.shape.experts_used) << l;
    uint64_t moved = 0;
    for (size_t e = 0; e < cpu.experts; ++e) {
      const size_t at = l * cpu.experts + e;
      const uint64_t a = cpu.tokens[at], b = gpu.tokens[at];
      moved += a > b ? a - b : b - a;
      if (a < enough || b < enough) continue;
      const double gate_up = distance(std::span(cpu.gate_up).subspan(at * cpu.width, cpu.width), a,
                                      std::span(gpu.gate_up).subspan(at * cpu.width, cpu.width), b);
      const double down = distance(std::span(cpu.down).subspan(at * cpu.expert_width, cpu.expert_width), a,
                                   std::span(gpu.down).subspan(at * cpu.expert_width, cpu.expert_width), b);
      EXPECT_LE(gate_up, by_id ? 0.03 : 0.1) << "layer " << l << " expert " << e;
      EXPECT_LE(down, by_id ? 0.06 : 0.25) << "layer " << l << " expert " << e;
    }
    EXPECT_LE(moved, by_id ? 0 : count(cpu, l) / 20) << l;
  }
}

TEST_F(ExpertInputsCudaTest, RunsRepeatAndShortCallsCount) {
  const testing::NanoPair nano(testing::bundled);
  const auto tokens = random_tokens(300, 4);
  const auto first = collect(*nano.gpu, tokens, 300), second = collect(*nano.gpu, tokens, 300);
  EXPECT_TRUE(first.gate_up == second.gate_up && first.down == second.down && first.tokens == second.tokens);
  const auto pieces = collect(*nano.gpu, tokens, 7);  // fewer than a decode batch
  for (size_t l = 0; l < first.layers; ++l) EXPECT_EQ(count(pieces, l), count(first, l));
}

TEST_F(ExpertInputsCudaTest, CollectingChangesNoLogit) {
  const testing::NanoPair nano(testing::bundled);
  const auto tokens = random_tokens(200, 5);
  std::vector<float> plain(3 * nano.cpu.shape.vocabulary), collected(plain.size());
  must(nano.gpu->prefill(*nano.sequence(), tokens, 3, plain, {}));
  const auto inputs = must(nano.gpu->create_expert_inputs());
  backend::EvalControl control;
  control.expert_inputs = inputs.get();
  must(nano.gpu->prefill(*nano.sequence(), tokens, 3, collected, control));
  EXPECT_EQ(collected, plain);
}

}  // namespace
}  // namespace ds4
