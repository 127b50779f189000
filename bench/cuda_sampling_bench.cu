// Choosing a token from 129,280 logits on the GPU, which lie in L2: microseconds of the kernels in one graph,
// and of a call that waits for the token.
#include <cuda_runtime.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/sampling/argmax.hpp"
#include "backend/cuda/sampling/device_draw.hpp"
#include "cuda_timing.hpp"
#include "ds4/sampling.hpp"
#include "sampling/draw.hpp"

namespace {

using namespace ds4::cuda;
using ds4::bench::Arena;
using ds4::bench::Report;
using ds4::bench::require;

constexpr uint32_t vocabulary = 129280;
constexpr double logit_bytes = 4.0 * vocabulary;
constexpr int launches = 300;

/// Page-locked host memory, where the backend has the GPU leave what it waits for.
template <class T>
std::unique_ptr<T[], cudaError_t (*)(void*)> pinned(size_t count) {
  T* data = nullptr;
  require(cudaMallocHost(reinterpret_cast<void**>(&data), count * sizeof(T)));
  return {data, cudaFreeHost};
}

/// Bell-shaped like the logits of a model, with a few clear favourites.
std::vector<float> example_logits() {
  std::vector<float> logits(vocabulary);
  ds4::Rng rng(42);
  for (float& logit : logits) {
    float sum = 0;
    for (int i = 0; i < 12; ++i) sum += rng.uniform();
    logit = 3 * (sum - 6);
  }
  for (int i = 0; i < 50; ++i) logits[rng.next() % vocabulary] = 10 + 8 * rng.uniform();
  return logits;
}

using Call = std::function<cudaError_t(cudaStream_t)>;

void add_waiting(const Report& report, const std::string& name, cudaStream_t stream, const Call& call) {
  constexpr int warm_up = 20;
  std::chrono::steady_clock::time_point begin;
  for (int i = 0; i < warm_up + launches; ++i) {
    if (i == warm_up) begin = std::chrono::steady_clock::now();
    require(call(stream));
    require(cudaStreamSynchronize(stream));
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  report.add({name + ", waiting for each", time.count() / launches, 0, 0});
}

void add(const Report& report, const std::string& name, double bytes, cudaStream_t stream, const Call& call) {
  const double microseconds =
      ds4::bench::graph_microseconds(launches, [&](int, cudaStream_t s) { return call(s); });
  report.add({name, microseconds, bytes, 0});
  add_waiting(report, name, stream, call);
}

void bench_summary(const Report& report, const float* logits, cudaStream_t stream) {
  Arena arena;
  const auto summaries = pinned<ds4::sampling::LogitSummary>(max_rows);
  void* scratch = arena.take<uint8_t>(argmax_scratch_bytes(max_rows, vocabulary));
  require(prepare_argmax_scratch(scratch, stream));
  require(cudaStreamSynchronize(stream));
  for (const uint32_t rows : {1u, uint32_t{max_rows}}) {
    ArgmaxArguments arguments{logits, rows, vocabulary, {}, scratch, summaries.get()};
    for (uint32_t r = 0; r < rows; ++r) arguments.copies[r] = arena.take<float>(vocabulary);
    add(report, "summary and copy, " + ds4::bench::counted(rows, "row"), 2 * rows * logit_bytes, stream,
        [&](cudaStream_t s) { return argmax(arguments, s); });
  }
}

void bench_draw(const Report& report, const std::vector<float>& host, const float* logits,
                cudaStream_t stream) {
  Arena arena;
  const auto token = pinned<int32_t>(1);
  void* scratch = arena.take<uint8_t>(draw_scratch_bytes(vocabulary));
  require(prepare_draw_scratch(scratch, vocabulary, stream));
  require(cudaStreamSynchronize(stream));
  const struct {
    const char* name;
    ds4::SamplingParams params;
  } cases[] = {{"defaults (min-p 0.05)", {}},
               {"no min-p", {.min_p = 0}},
               {"top-p 0.95", {.top_p = 0.95f}},
               {"top-p 0.95, no min-p", {.top_p = 0.95f, .min_p = 0}},
               {"top-k 40, top-p 0.95", {.top_k = 40, .top_p = 0.95f}},
               {"top-k 1000, no min-p", {.top_k = 1000, .min_p = 0}}};
  ds4::Rng rng(1);
  for (const auto& entry : cases) {
    const ds4::sampling::DrawRule rule = ds4::sampling::normalized(entry.params);
    DrawArguments arguments;
    arguments.logits = logits;
    arguments.vocabulary = vocabulary;
    arguments.softmax = ds4::sampling::make_softmax(ds4::sampling::summarize(host).maximum, rule);
    arguments.top_k = rule.top_k;
    arguments.top_p = rule.top_p;
    arguments.scratch = scratch;
    arguments.token = token.get();
    add(report, entry.name, logit_bytes, stream, [&](cudaStream_t s) {
      arguments.uniform = rng.uniform();
      return draw(arguments, s);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Report report(ds4::bench::read_options(argc, argv), "choosing a token from 129,280 logits");
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const std::vector<float> host = example_logits();
  Arena arena;
  auto* logits = arena.take<float>(max_rows * size_t{vocabulary});
  for (size_t r = 0; r < max_rows; ++r) {
    require(cudaMemcpy(logits + r * vocabulary, host.data(), host.size() * sizeof(float),
                       cudaMemcpyHostToDevice));
  }
  bench_summary(report, logits, stream);
  bench_draw(report, host, logits, stream);
  std::vector<float> back(vocabulary);
  add_waiting(report, "copy of all logits to the host", stream, [&](cudaStream_t s) {
    return cudaMemcpyAsync(back.data(), logits, back.size() * sizeof(float), cudaMemcpyDeviceToHost, s);
  });
  require(cudaStreamDestroy(stream));
  return 0;
}
