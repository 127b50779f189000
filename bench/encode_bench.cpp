// Encoding of weights on one thread: millions of weights a second, and MB/s of F32, BF16 and FP4 source.
// ds4_encode_bench [--target=AVX2] [options of Google Benchmark]
#include <benchmark/benchmark.h>
#include <hwy/targets.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "format/number_formats.hpp"

namespace ds4 {
namespace {

using format::TensorType;

constexpr size_t kCols = 4096, kRows = 16;

void encode(benchmark::State& state, TensorType type, bool weighted) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(kRows * kCols), importance(kCols);
  for (float& value : values) value = normal(random);
  for (float& value : importance) value = normal(random) * normal(random) + 1e-4f;
  for (float& value : importance) value = value < 0 ? -value : value;
  const auto prepared = format::prepare_importance(importance);
  const size_t row_bytes = format::row_bytes(type, kCols);
  std::vector<std::byte> out(kRows * row_bytes);
  for (auto _ : state) {
    for (size_t row = 0; row < kRows; ++row) {
      const auto result =
          format::encode_weighted_row(type, values.data() + row * kCols, kCols,
                                      weighted ? prepared->data() : nullptr, out.data() + row * row_bytes);
      if (!result) state.SkipWithError(result.error().message.c_str());
    }
    benchmark::ClobberMemory();
  }
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  const double millions = 1e-6 * static_cast<double>(values.size());
  state.counters["Mweights/s"] = benchmark::Counter(millions, rate);
  state.counters["MB/s_f32"] = benchmark::Counter(4 * millions, rate);
  state.counters["MB/s_bf16"] = benchmark::Counter(2 * millions, rate);
  state.counters["MB/s_fp4"] = benchmark::Counter(17.0 / 32 * millions, rate);
}

}  // namespace
}  // namespace ds4

int main(int argc, char** argv) {
  using ds4::format::TensorType;
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with("--target=")) {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      return 2;
    }
    const std::string name = argument.substr(std::strlen("--target="));
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      if (name == hwy::TargetName(target)) hwy::SetSupportedTargetsForTest(target);
    }
  }
  for (const TensorType type :
       {TensorType::q8_0, TensorType::mxfp4, TensorType::q4_k, TensorType::q2_k, TensorType::iq2_xxs}) {
    for (const bool weighted : {false, true}) {
      if (!weighted && ds4::format::needs_importance(type)) continue;
      if (weighted && type == TensorType::q8_0) continue;
      const std::string name = std::string(ds4::format::type_name(type)) + (weighted ? "/importance" : "");
      benchmark::RegisterBenchmark(name.c_str(), ds4::encode, type, weighted)->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
