// Times attention and indexer of prefill at the shape of Flash: microseconds (median), TFLOP/s and their
// share of what F16 products reach on an H200, and bytes that pass the L2 cache or device memory.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/attention/prefill_attention.hpp"
#include "backend/cuda/indexer/prefill_indexer.hpp"

namespace {

using namespace ds4::cuda;

constexpr uint32_t heads = 64, index_heads = 64, top_k = 512, chunk = 4096;
constexpr double ceiling_tflops = 790;

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

// Never freed: the program ends soon.
template <class T>
T* reserve(size_t count) {
  void* data = nullptr;
  require(cudaMalloc(&data, count * sizeof(T)));
  return static_cast<T*>(data);
}

template <class T>
T* upload(const std::vector<T>& values) {
  T* data = reserve<T>(values.size());
  require(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

__device__ float random_value(uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15u;
  i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
  i = (i ^ i >> 27) * 0x94d049bb133111ebu;
  const auto bits = static_cast<uint32_t>(i >> 32);  // the sum of four bytes, nearly normal
  const int sum =
      static_cast<int>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24)) - 510;
  return static_cast<float>(sum) / 148.0f;
}

template <class T>
__global__ void fill_kernel(T* out, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x)
    out[i] = static_cast<T>(random_value(i));
}

template <class T>
T* random_array(size_t count) {
  T* data = reserve<T>(count);
  fill_kernel<<<1024, 256>>>(data, count);
  require(cudaGetLastError());
  return data;
}

void report(const std::string& name, double flops, double bytes, const std::function<cudaError_t()>& launch) {
  cudaEvent_t start, stop;
  require(cudaEventCreate(&start));
  require(cudaEventCreate(&stop));
  std::vector<float> times;
  for (int i = 0; i < 8; ++i) {
    require(cudaEventRecord(start));
    require(launch());
    require(cudaEventRecord(stop));
    require(cudaEventSynchronize(stop));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, start, stop));
    if (i > 1) times.push_back(milliseconds);
  }
  std::sort(times.begin(), times.end());
  const double us = 1e3 * times[times.size() / 2], tflops = flops / us / 1e6;
  std::printf("%-34s %9.1f us %7.1f TFLOP/s %5.1f %% %7.0f GB/s\n", name.c_str(), us, tflops,
              100 * tflops / ceiling_tflops, bytes / us / 1e3);
}

void bench_attention(uint32_t ratio, uint64_t position, uint32_t tokens, PrefillKernel kernel) {
  std::mt19937 random(ratio);
  const uint32_t compressed = visible_rows(position + tokens - 1, ratio);
  PrefillAttention a;
  a.older = static_cast<uint32_t>(std::min<uint64_t>(position, 127));
  a.tokens = tokens;
  a.position = position;
  a.heads = heads;
  a.ratio = ratio;
  a.top_k = top_k;
  a.rows = random_array<__half>((size_t{a.older} + tokens + compressed) * 512);
  a.query = random_array<__half>(size_t{tokens} * heads * 512);
  a.out = reserve<__half>(size_t{tokens} * heads * 512);
  a.sinks = random_array<float>(heads);
  a.frequencies = upload(std::vector<float>(32, 0.01f));
  double rows = 0;
  std::vector<uint32_t> selected(ratio == 4 ? size_t{tokens} * top_k : 0);
  for (uint32_t t = 0; t < tokens; ++t) {
    const uint32_t visible = visible_rows(position + t, ratio);
    const bool choose = ratio == 4 && visible > top_k;
    rows += static_cast<double>(std::min<uint64_t>(position + t + 1, 128)) + (choose ? top_k : visible);
    if (!choose) continue;
    // One row of each of top_k equal stretches.
    for (uint32_t i = 0; i < top_k; ++i) {
      const uint64_t begin = uint64_t{visible} * i / top_k, end = uint64_t{visible} * (i + 1) / top_k;
      selected[size_t{t} * top_k + i] = static_cast<uint32_t>(begin + random() % (end - begin));
    }
  }
  a.selected = selected.empty() ? nullptr : upload(selected);
  report("attention ratio " + std::to_string(ratio) + (kernel == PrefillKernel::portable ? " portable" : ""),
         rows * heads * 2048, rows * 1024 + 2.0 * tokens * heads * 1024,
         [&] { return prefill_attention(a, nullptr, kernel); });
}

void bench_indexer(uint64_t position, uint32_t tokens, PrefillKernel kernel) {
  const uint32_t compressed = visible_rows(position + tokens - 1, 4);
  std::mt19937 random(1);
  std::vector<uint8_t> rows((size_t{compressed} / rows_per_page + 1) * rows_per_page * index_row_bytes);
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool exponent = i % index_row_bytes >= 64;
    rows[i] = static_cast<uint8_t>(exponent ? 124 + random() % 4 : random());
  }
  uint8_t* keys = upload(rows);
  std::vector<const uint8_t*> pages;
  for (size_t at = 0; at < rows.size(); at += size_t{rows_per_page} * index_row_bytes)
    pages.push_back(keys + at);
  PrefillIndexer a;
  a.tokens = tokens;
  a.position = position;
  a.heads = index_heads;
  a.top_k = top_k;
  a.query = random_array<float>(size_t{tokens} * index_heads * 128);
  a.head_weights = random_array<float>(size_t{tokens} * index_heads);
  a.frequencies = upload(std::vector<float>(32, 0.01f));
  a.pages = upload(pages);
  a.selected = reserve<uint32_t>(size_t{tokens} * top_k);
  a.scratch = reserve<uint8_t>(prefill_indexer_scratch_bytes(tokens, index_heads, compressed));
  double scored = 0, choosing = 0;
  for (uint32_t t = 0; t < tokens; ++t) {
    const uint32_t visible = visible_rows(position + t, 4);
    if (visible <= top_k) continue;
    scored += visible;
    ++choosing;
  }
  const std::string suffix = kernel == PrefillKernel::portable ? " portable" : "";
  const double flops = scored * index_heads * 256, query_bytes = choosing * index_heads * 128;
  report("indexer" + suffix, flops, query_bytes * 6 + 8 * scored,
         [&] { return prefill_index_rows(a, nullptr, kernel); });

  if (choosing == 0) return;
  // The steps, over a slice of at most 128 MB of scores.
  IndexSlice slice;
  slice.score_stride = (size_t{compressed} + 127) / 128 * 128;
  slice.tokens = static_cast<uint32_t>(
      std::min<size_t>(tokens, (size_t{32} << 20) / (slice.score_stride + 128) / 64 * 64));
  slice.first = tokens - slice.tokens;
  slice.groups = 1;
  slice.queries = reserve<uint16_t>(size_t{slice.tokens} * index_heads * 128);
  slice.weights = reserve<float>(size_t{slice.tokens} * index_heads);
  slice.scores = reserve<float>(slice.tokens * slice.score_stride);
  scored = 0;
  for (uint32_t t = slice.first; t < tokens; ++t) scored += visible_rows(position + t, 4);
  const std::string of = " of " + std::to_string(slice.tokens) + suffix;
  report("  queries" + of, 0, 6.0 * slice.tokens * index_heads * 128,
         [&] { return prepare_index_queries(a, slice, nullptr); });
  report("  scores" + of, scored * index_heads * 256, scored * 4,
         [&] { return score_index_slice(a, slice, kernel, nullptr); });
  report("  choice" + of, 0, scored * 4, [&] { return select_slice_rows(a, slice, nullptr); });
}

}  // namespace

// With an argument: only the context of that many thousand tokens.
int main(int count, char** arguments) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device: nothing measured");
    return 0;
  }
  const uint64_t only = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 0;
  for (uint64_t thousands : {2u, 8u, 32u, 128u}) {
    if (only != 0 && only != thousands) continue;
    const uint64_t context = thousands * 1024;
    const auto tokens = static_cast<uint32_t>(std::min<uint64_t>(context, chunk));
    std::printf("context %llu, its last %u tokens\n", static_cast<unsigned long long>(context), tokens);
    for (uint32_t ratio : {0u, 4u, 128u})
      bench_attention(ratio, context - tokens, tokens, PrefillKernel::best);
    bench_indexer(context - tokens, tokens, PrefillKernel::best);
    if (thousands != 32) continue;
    bench_attention(4, context - tokens, tokens, PrefillKernel::portable);
    bench_indexer(context - tokens, tokens, PrefillKernel::portable);
  }
  return 0;
}
