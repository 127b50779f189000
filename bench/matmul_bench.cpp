// Matrix products: GB/s of weights read for one token, GMAC/s for batches, beside the machine's stream read
// rate. ds4_matmul_bench [--threads=N] [--target=AVX2] [options of Google Benchmark]
#include <benchmark/benchmark.h>
#include <hwy/targets.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/matmul.hpp"
#include "backend/cpu/read_bandwidth.hpp"
#include "format/f16.hpp"

namespace ds4 {
namespace {

using cpu::ActivationMode;
using format::TensorType;

unsigned threads = 0;                               // --threads=N first; 0 = all processors
constexpr size_t kStreamBytes = size_t{512} << 20;  // far more than any cache

ThreadPool& pool() {
  static ThreadPool shared(threads);
  return shared;
}

/// Random bytes with scales of ordinary size.
void fill_matrix(TensorType type, std::byte* data, size_t bytes) {
  std::mt19937_64 random(1);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t value = random();
    std::memcpy(data + i, &value, 8);
  }
  const size_t block = format::type_traits(type)->block_bytes;
  const uint16_t half = format::f32_to_f16(0.01f);
  for (size_t at = 0; at + block <= bytes; at += block) {
    if (type == TensorType::mxfp4) data[at] = std::byte{120};
    if (type == TensorType::q2_k)
      std::memcpy(data + at + 80, &half, 2), std::memcpy(data + at + 82, &half, 2);
    if (type == TensorType::q4_k) std::memcpy(data + at + 2, &half, 2);
    if (type == TensorType::q4_k || type == TensorType::q8_0 || type == TensorType::iq2_xxs ||
        type == TensorType::f16) {
      std::memcpy(data + at, &half, 2);
    }
  }
}

/// What any product with one token is measured against.
void stream_read(benchmark::State& state) {
  AlignedBuffer<uint64_t> buffer(kStreamBytes / 8);
  std::memset(buffer.data(), 1, kStreamBytes);
  for (auto _ : state) {
    benchmark::DoNotOptimize(cpu::sum_words(pool(), {buffer.data(), buffer.size()}));
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(kStreamBytes) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

/// Weights come from memory: the row range walks through a matrix of kStreamBytes.
void one_token(benchmark::State& state, TensorType type, size_t cols, ActivationMode mode) {
  const size_t row_bytes = format::row_bytes(type, cols), rows = 4096;
  const size_t matrices = kStreamBytes / (row_bytes * rows);
  AlignedBuffer<std::byte> bytes(matrices * rows * row_bytes);
  fill_matrix(type, bytes.data(), bytes.size());
  const cpu::Matrix all{type, bytes.data(), matrices * rows, cols};
  std::vector<float> x(cols, 0.5f), out(rows);
  std::vector<cpu::MatmulScratch> scratch(pool().size());
  cpu::Activations activations(mode);
  size_t matrix = 0;
  for (auto _ : state) {
    activations.assign(x.data(), 1, cols, cols);
    cpu::matmul(pool(), scratch, all.slice(matrix * rows, rows), activations, out.data(), rows);
    matrix = (matrix + 1) % matrices;
  }
  const auto per_second = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(rows * row_bytes) * 1e-9, per_second);
  state.counters["GMAC/s"] = benchmark::Counter(static_cast<double>(rows * cols) * 1e-9, per_second);
}

void batch(benchmark::State& state, TensorType type, size_t rows, size_t cols, ActivationMode mode) {
  const auto count = static_cast<size_t>(state.range(0));
  AlignedBuffer<std::byte> bytes(rows * format::row_bytes(type, cols));
  fill_matrix(type, bytes.data(), bytes.size());
  const cpu::Matrix w{type, bytes.data(), rows, cols};
  AlignedBuffer<float> x(count * cols), out(count * rows);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < count * cols; ++i) x[i] = normal(random);
  std::vector<cpu::MatmulScratch> scratch(pool().size());
  cpu::Activations activations(mode);
  for (auto _ : state) {
    activations.assign(x.data(), count, cols, cols);
    cpu::matmul(pool(), scratch, w, activations, out.data(), rows);
  }
  state.counters["GMAC/s"] = benchmark::Counter(static_cast<double>(rows * cols * count) * 1e-9,
                                                benchmark::Counter::kIsIterationInvariantRate);
}

/// Rates of one thread are per second of processor time, so that they hold on a busy machine; else per real
/// second.
void set_clock(benchmark::internal::Benchmark* benchmark) {
  if (pool().size() > 1) benchmark->UseRealTime();
}

void register_all() {
  const TensorType types[] = {TensorType::q8_0,    TensorType::mxfp4, TensorType::q4_k, TensorType::q2_k,
                              TensorType::iq2_xxs, TensorType::f16,   TensorType::bf16, TensorType::f32};
  set_clock(benchmark::RegisterBenchmark("stream_read", stream_read)->Unit(benchmark::kMillisecond));
  for (const TensorType type : types) {
    const std::string name(format::type_name(type));
    set_clock(benchmark::RegisterBenchmark(("one_token/" + name).c_str(), one_token, type, 4096,
                                           ActivationMode::quantized)
                  ->Unit(benchmark::kMicrosecond));
    auto* many = benchmark::RegisterBenchmark(("batch/" + name).c_str(), batch, type, 2048, 4096,
                                              ActivationMode::quantized);
    for (const int count : {2, 4, 14, 64, 512}) many->Arg(count);
    set_clock(many->Unit(benchmark::kMillisecond));
    if (cpu::activation_format(type, ActivationMode::quantized) == cpu::ActivationFormat::f32) continue;
    set_clock(benchmark::RegisterBenchmark(("exact/one_token/" + name).c_str(), one_token, type, 4096,
                                           ActivationMode::f32)
                  ->Unit(benchmark::kMicrosecond));
    auto* exact = benchmark::RegisterBenchmark(("exact/batch/" + name).c_str(), batch, type, 2048, 4096,
                                               ActivationMode::f32);
    for (const int count : {2, 4, 14, 64, 512}) exact->Arg(count);
    set_clock(exact->Unit(benchmark::kMillisecond));
  }
}

/// Takes --name=value out of the arguments if it comes first.
std::string take_option(int& argc, char** argv, const std::string& name) {
  const std::string option = "--" + name + "=";
  if (argc < 2 || !std::string(argv[1]).starts_with(option)) return "";
  std::string value = argv[1] + option.size();
  for (int i = 2; i < argc; ++i) argv[i - 1] = argv[i];
  --argc;
  return value;
}

/// The Highway kernels of one instruction set, e.g. AVX2. False if the machine does not have it.
bool limit_target(const std::string& name) {
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    if (name != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    return true;
  }
  return false;
}

}  // namespace
}  // namespace ds4

int main(int argc, char** argv) {
  std::string command = argv[0];
  for (int i = 1; i < argc; ++i) command.append(" ").append(argv[i]);
  const std::string threads = ds4::take_option(argc, argv, "threads");
  if (!threads.empty()) ds4::threads = static_cast<unsigned>(std::stoul(threads));
  const std::string target = ds4::take_option(argc, argv, "target");
  if (!target.empty() && !ds4::limit_target(target)) {
    std::fprintf(stderr, "ds4_matmul_bench: this machine has no %s\n", target.c_str());
    return 2;
  }
  benchmark::AddCustomContext("cpu_target", ds4::cpu::cpu_target_name());
  benchmark::AddCustomContext("threads", std::to_string(ds4::pool().size()));
  benchmark::AddCustomContext("command", command);
  ds4::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
