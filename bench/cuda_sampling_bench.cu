// Time of choosing a token from 129,280 logits on the GPU: kernels alone, and as a call that waits for the
// token.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/cuda/sampling/argmax.hpp"
#include "backend/cuda/sampling/device_draw.hpp"
#include "ds4/sampling.hpp"
#include "sampling/draw.hpp"

namespace {

using namespace ds4::cuda;

constexpr uint32_t vocabulary = 129280;
constexpr int calls = 300;

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

template <class T>
T* reserve(size_t count) {
  T* data = nullptr;
  require(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)));
  return data;
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

template <class Call>
void report(const char* name, cudaStream_t stream, const Call& call) {
  for (int i = 0; i < 20; ++i) call();
  require(cudaStreamSynchronize(stream));
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  require(cudaEventRecord(begin, stream));
  for (int i = 0; i < calls; ++i) call();
  require(cudaEventRecord(end, stream));
  require(cudaStreamSynchronize(stream));
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, begin, end));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    call();
    require(cudaStreamSynchronize(stream));
  }
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  std::printf("%-28s %8.2f us back to back, %8.2f us waiting for each\n", name,
              1e3 * static_cast<double>(milliseconds) / calls, 1e6 * waited.count() / calls);
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device: nothing measured");
    return 0;
  }
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream));
  const std::vector<float> host = example_logits();
  auto* logits = reserve<float>(16 * size_t{vocabulary});
  for (size_t r = 0; r < 16; ++r) {
    require(
        cudaMemcpy(logits + r * vocabulary, host.data(), vocabulary * sizeof(float), cudaMemcpyHostToDevice));
  }
  ds4::sampling::LogitSummary* summaries = nullptr;
  int32_t* token = nullptr;
  require(cudaMallocHost(reinterpret_cast<void**>(&summaries), 16 * sizeof(*summaries)));
  require(cudaMallocHost(reinterpret_cast<void**>(&token), sizeof(*token)));
  void* scratch = reserve<uint8_t>(argmax_scratch_bytes(16, vocabulary));
  require(prepare_argmax_scratch(scratch, stream));
  void* draw_scratch = reserve<uint8_t>(draw_scratch_bytes(vocabulary));
  require(prepare_draw_scratch(draw_scratch, vocabulary, stream));
  for (const uint32_t rows : {1u, 16u}) {
    ArgmaxArguments arguments{logits, rows, vocabulary, {}, scratch, summaries};
    for (uint32_t r = 0; r < rows; ++r) arguments.copies[r] = reserve<float>(vocabulary);
    report(rows == 1 ? "summary and copy, 1 row" : "summary and copy, 16 rows", stream,
           [&] { require(argmax(arguments, stream)); });
  }

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
    arguments.scratch = draw_scratch;
    arguments.token = token;
    report(entry.name, stream, [&] {
      arguments.uniform = rng.uniform();
      require(draw(arguments, stream));
    });
  }
  std::vector<float> back(vocabulary);
  report("copy of all logits", stream, [&] {
    require(
        cudaMemcpyAsync(back.data(), logits, back.size() * sizeof(float), cudaMemcpyDeviceToHost, stream));
  });
  return 0;
}
