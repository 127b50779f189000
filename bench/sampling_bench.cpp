// Time of one choice from 129,280 logits on the CPU.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "ds4/sampling.hpp"

namespace {

/// Bell-shaped like the logits of a model, with a few clear favourites.
std::vector<float> example_logits(size_t count) {
  std::vector<float> logits(count);
  ds4::Rng rng(42);
  for (float& logit : logits) {
    float sum = 0;
    for (int i = 0; i < 12; ++i) sum += rng.uniform();
    logit = 3 * (sum - 6);
  }
  for (int i = 0; i < 50; ++i) logits[rng.next() % count] = 10 + 8 * rng.uniform();
  return logits;
}

void choose(benchmark::State& state, const ds4::SamplingParams& params) {
  const std::vector<float> logits = example_logits(129280);
  ds4::Rng rng(1);
  for (auto _ : state) benchmark::DoNotOptimize(ds4::sample(logits, params, rng));
}

BENCHMARK_CAPTURE(choose, greedy, ds4::SamplingParams{.temperature = 0});
BENCHMARK_CAPTURE(choose, defaults, ds4::SamplingParams{});
BENCHMARK_CAPTURE(choose, no_min_p, ds4::SamplingParams{.min_p = 0});
BENCHMARK_CAPTURE(choose, top_p, ds4::SamplingParams{.top_p = 0.95f});
BENCHMARK_CAPTURE(choose, top_p_only, ds4::SamplingParams{.top_p = 0.95f, .min_p = 0});
BENCHMARK_CAPTURE(choose, top_k_40, ds4::SamplingParams{.top_k = 40, .top_p = 0.95f});
BENCHMARK_CAPTURE(choose, top_k_1000, ds4::SamplingParams{.top_k = 1000, .min_p = 0});

}  // namespace

BENCHMARK_MAIN();
